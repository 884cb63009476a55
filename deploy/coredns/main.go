// CoreDNS with the plugins Ozymandias uses and no others: it answers from the
// keys the daemons write to etcd, caches, and forwards the rest. Leaving the
// other plugins (and the cloud libraries behind them) out makes the build
// several times faster and the program a third of the size.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/etcd"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// The order of this list is the order in which the plugins see a question.
func init() {
	dnsserver.Directives = []string{
		"bind", "bufsize", "reload", "ready", "health", "prometheus", "errors", "log",
		"cache", "loadbalance", "etcd", "forward",
	}
}

func main() {
	coremain.Run()
}
