"""Lists of words the job file knows: signals, capabilities, names that are the system's own."""

_SIGNALS = """
    HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP
    TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS RTMIN RTMAX
"""
SIGNALS = frozenset(_SIGNALS.split())

_CAPABILITIES = """
    AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE
    DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN
    MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID
    SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE
    SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
"""
CAPABILITIES = frozenset(_CAPABILITIES.split()) | {"ALL"}

# Pattern of a name -> why a job file can't give it.
RESERVED_VARIABLES = {
    r"OZY_(JOB|NAMESPACE|INSTANCE|NODE|VERSION|API)|HOST_IP": "is set by Ozymandias itself",
}
RESERVED_LABELS = {
    r"(io\.)?(ozymandias|ozy)([./-].*)?": "belongs to Ozymandias itself",
}

# Fields of the format that are not built yet: refused as such, never ignored. -> what they are.
UNBUILT_JOB_FIELDS = {
    "pre_deploy": "a task before each deployment",
    "schedule": "running a job at given times",
    "update": "how a rollout proceeds",
    "sidecar": "a proxy beside each instance",
    "vault": "secrets from Vault",
    "egress": "what a job may reach",
    "depends_on": "waiting for other jobs",
}
UNBUILT_CONTAINER_FIELDS = {
    "env_file": "variables from a file",
    "readiness": "a second check, for traffic only",
    "secrets": "secrets as files",
}

# Words of other tools -> what to do here.
OTHER_JOB_WORDS = {
    "services": 'did you mean "containers"?',
    "replicas": 'did you mean "numInstances"?',
    "count": 'did you mean "numInstances"?',
    "scale": 'did you mean "numInstances"?',
    "version": "a job file has no version; leave it out",
    "networks": "every pod has an address of its own; leave it out",
    "volumes": "volumes are listed in each container",
    "image": 'it belongs in a container: "containers: {app: {image: …}}"',
}
OTHER_CONTAINER_WORDS = {
    "env": 'did you mean "environment"?',
    "cmd": 'did you mean "command"?',
    "args": 'did you mean "command"?',
    "workdir": 'did you mean "working_dir"?',
    "mem": 'did you mean "memory"?',
    "health": 'did you mean "healthcheck"?',
    "expose": 'did you mean "ports"?',
    "build": 'build the image first and name it in "image"',
    "networks": "every pod has an address of its own; leave it out",
    "network_mode": "every pod has an address of its own; leave it out",
    "links": "containers of a job reach each other on localhost; leave it out",
    "container_name": "the name is the key under containers; leave it out",
    "hostname": "the host name is the instance's; leave it out",
    "privileged": 'give single capabilities by "cap_add"',
    "replicas": 'the job says how many: "numInstances"',
    "scale": 'the job says how many: "numInstances"',
    "numInstances": "it belongs to the job, not to one container",
    "instances": "it belongs to the job, not to one container",
    "ingress": "it belongs to the job, not to one container",
}
OTHER_VOLUME_WORDS = {
    "size": 'did you mean "space"?',
    "storage": 'did you mean "space"?',
    "mount": 'did you mean "path"?',
    "mountPath": 'did you mean "path"?',
    "destination": 'did you mean "path"?',
    "read_only": "a volume can be written to; leave it out",
}
OTHER_HEALTHCHECK_WORDS = {
    "url": 'did you mean "path"?',
    "http": "write type: http, with port and path",
    "tcp": "write type: tcp, with port",
    "exec": "write type: exec, with command",
    "initial_delay": 'did you mean "start_period"?',
}
