#!/bin/sh
# A small web server for demonstrations and tests: `ozy-demo` serves, `ozy-demo unhealthy` and
# `ozy-demo healthy` change what /healthz answers. It can be told to misbehave:
#   PORT=8000        where it listens
#   MESSAGE=text     a line of the page
#   START_DELAY=s    seconds until it listens
#   UNHEALTHY=1      /healthz answers 404 from the start
#   FAIL_AFTER=s     ends after so many seconds, with EXIT_CODE (1)
#   EAT_MEMORY=64M   takes so much memory at once after EAT_AFTER (0) seconds
port=${PORT:-8000}
# Memory, not disk: works on a read-only root file system too. The containers of a pod share it.
root=/dev/shm/ozy-demo-$port

case $1 in
    unhealthy) rm -f "$root/healthz"; exit 0 ;;
    healthy) echo ok > "$root/healthz"; exit 0 ;;
esac

mkdir -p "$root" || exit 1
{
    echo "${MESSAGE:-Look on my Works, ye Mighty, and despair!}"
    echo "host: $(hostname)"
    echo "instance: $OZY_INSTANCE"
    echo "node: $OZY_NODE"
    echo "version: $OZY_VERSION"
} > "$root/index.html"
if [ -z "$UNHEALTHY" ]; then echo ok > "$root/healthz"; else rm -f "$root/healthz"; fi

# The shell is process 1: without a handler of its own the stop signal would be ignored.
trap 'echo stopping; exit 0' TERM INT QUIT
trap 'echo failing; exit "${EXIT_CODE:-1}"' USR1

if [ -n "$START_DELAY" ]; then sleep "$START_DELAY" & wait $!; fi
httpd -f -p "$port" -h "$root" &
server=$!
echo "listening on port $port"
if [ -n "$FAIL_AFTER" ]; then { sleep "$FAIL_AFTER"; kill -USR1 $$; } & fi
# exec: the process that takes the memory is the one that the kernel picks; then we end as well.
if [ -n "$EAT_MEMORY" ]; then
    sleep "${EAT_AFTER:-0}" & wait $!
    exec dd if=/dev/zero of=/dev/null bs="$EAT_MEMORY" count=1000000
fi
wait $server
echo "the server ended"
exit 1
