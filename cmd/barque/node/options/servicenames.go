package options

import (
	"strings"
)

// OfServices returns the reason why a name may be one by which clients call a Service, or "".
// Short names of a Service, NAME and NAME.NAMESPACE, cannot be told from those of machines; see
// join.NodeServing.
func OfServices(name, domain string) string {
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
