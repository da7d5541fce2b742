package clusterstatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// UnreadyNode is a Node of the API that is not Ready, or that is missing although its member lives.
type UnreadyNode struct {
	Name string `json:"name"`
	// Role is that of a member; empty for a foreign node, which other software runs.
	Role    string `json:"role,omitempty"`
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	// Since is the time of the change, or of the Node's creation, and Why the reason in the Node.
	Since time.Time `json:"since"`
	Why   string    `json:"why,omitempty"`
	// Missing: the API has no such Node. Since is then when the leader saw the member come alive.
	Missing bool `json:"missing,omitempty"`
	// Unknown: nobody knows whether it is Ready, because its kubelet has been silent for long.
	Unknown bool `json:"unknown,omitempty"`
}

// startGrace is the time in which a living node becomes Ready after a start. A Node of unknown
// readiness gets none: its kubelet was waited for before.
const startGrace = time.Minute

// shownNames is how many names a warning has.
const shownNames = 5

// unready adds the Nodes that are not Ready in the leader's view. An agent that gossip does not
// know becomes a member of the status: its Node is the only trace of it, as after a restore.
func (a *assembly) unready() {
	report := a.objects[a.status.Leader]
	if report == nil {
		return
	}
	a.status.Unready, a.status.Failing = report.Unready, report.Failing
	for _, n := range report.Unready {
		if n.Role == pki.RoleAgent && a.members[n.Name] == nil {
			a.members[n.Name] = &MemberStatus{Name: n.Name, Role: n.Role, Address: n.Address, Version: n.Version,
				Gossip: unknownToGossip}
		}
	}
}

// unknownToGossip is the state of a member that gossip does not know.
const unknownToGossip gossip.State = "unknown"

// unready warns of Nodes that are not Ready for a reason that has no warning of its own.
func (w *warner) unready() {
	var foreign []string
	for _, n := range w.status.Unready {
		m := w.member(n.Name)
		starts := !n.Unknown && w.status.Time.Sub(n.Since) < startGrace
		switch {
		case n.Role == "" && starts:
		case n.Role == "":
			foreign = append(foreign, n.Name)
		case m != nil && m.Gossip == unknownToGossip && m.Role == pki.RoleAgent:
			w.add(Attention, n.Name, n.Name,
				w.by.Look(n.Name, n.Role)+w.lostForGood("barque kubectl delete node "+n.Name),
				"agent %s is not Ready since %s, and no server sees it by gossip: %s", n.Name,
				n.Since.UTC().Format(time.RFC3339), n.Why)
		case m == nil || m.Gossip != gossip.Alive || m.Problem != "" || len(m.Faults) > 0 || starts:
			// A former or silent server, a dead agent and an ill node have their own warnings.
		case n.Missing:
			w.add(Attention, n.Name, n.Name, w.by.Look(n.Name, n.Role),
				"%s %s is alive since %s, and the API has no Node of it, so that no pod runs there: %s; its log has the reason, such as an admission policy that refuses Nodes",
				n.Role, n.Name, n.Since.UTC().Format(time.RFC3339), n.Why)
		default:
			w.add(Attention, n.Name, "", "barque kubectl describe node "+n.Name,
				"node %s is alive, and not Ready since %s: %s", n.Name, n.Since.UTC().Format(time.RFC3339), n.Why)
		}
	}
	if len(foreign) > 0 {
		w.add(Attention, "", "", "barque kubectl describe node "+foreign[0],
			"not Ready, of the nodes that other software runs: %s", firstOf(foreign))
	}
}

// firstOf lists the first names, and the number of the others.
func firstOf(names []string) string {
	if len(names) <= shownNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shownNames], ", "), len(names)-shownNames)
}

// FailingCall is an object for which the API server has to call another program, and cannot.
type FailingCall struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Webhooks are those of a configuration of admission, by name.
	Webhooks []string `json:"webhooks,omitempty"`
	// Service is NAMESPACE/NAME of the Service to call, and Why the reason of the failure.
	Service string `json:"service"`
	Why     string `json:"why"`
}

// failing warns of requests that fail because the API server cannot call another program.
func (w *warner) failing() {
	for _, f := range w.status.Failing {
		kind := strings.ToLower(f.Kind)
		ready := fmt.Sprintf("make the pods of the Service %s ready, or: barque kubectl ", f.Service)
		switch f.Kind {
		case "CustomResourceDefinition":
			w.add(Attention, "", "", ready+fmt.Sprintf("edit %s %s (spec.conversion)", kind, f.Name),
				"objects of %s cannot be converted between their versions, so requests for them fail: the webhook's Service %s: %s", f.Name, f.Service, f.Why)
		case "APIService":
			w.add(Attention, "", "", ready+fmt.Sprintf("delete %s %s", kind, f.Name),
				"the API %s is not available, and no namespace can be deleted: its Service %s: %s", f.Name, f.Service,
				f.Why)
		default:
			hooks := "webhook " + f.Webhooks[0] + " selects"
			if len(f.Webhooks) > 1 {
				hooks = "webhooks " + firstOf(slices.Clone(f.Webhooks)) + " select"
			}
			w.add(Attention, "", "", ready+fmt.Sprintf("delete %s %s", kind, f.Name),
				"the %s %q refuses the requests that its %s: the Service %s: %s", f.Kind, f.Name, hooks, f.Service,
				f.Why)
		}
	}
}
