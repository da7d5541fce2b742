package node

import (
	"net/netip"
	"strings"

	"github.com/barque/barque/membership/enroll"
)

// ofServices returns the reason why a name may be one by which clients call a Service, or "".
// Short names of a Service, NAME and NAME.NAMESPACE, cannot be told from those of machines; see
// join.NodeServing.
func ofServices(name, domain string) string {
	labels := strings.Split(name, ".")
	switch {
	case name == domain || strings.HasSuffix(name, "."+domain):
		return "is a name of the cluster's DNS domain " + domain
	case len(labels) > 2 && (labels[2] == "svc" || labels[len(labels)-1] == "svc"):
		return "is the name of a Service"
	case labels[0] == "kubernetes":
		return "is a name of the API"
	case labels[len(labels)-1] == "localhost":
		return "is every machine's name for itself"
	}
	return ""
}

// parseAgentCIDRs reads --agent-cidr.
func (o *Options) parseAgentCIDRs() error {
	o.agentCIDRs = nil
	for _, text := range o.AgentCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return enroll.WrongOption("--agent-cidr %s: want a range of addresses such as 203.0.113.0/24", text)
		}
		o.agentCIDRs = append(o.agentCIDRs, p)
	}
	return nil
}
