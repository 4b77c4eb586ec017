// CoreDNS with the plugins a cluster needs and none of the cloud providers' (a third of the size, a fraction of the build).
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() { dnsserver.Directives = []string{"health", "ready", "errors", "cache", "kubernetes", "template"} }

func main() { coremain.Run() }
