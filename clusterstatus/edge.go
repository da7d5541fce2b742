package clusterstatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/network/faults"
)

// EdgeStatus is how clients outside of the cluster reach it, as far as something is wrong.
type EdgeStatus struct {
	// Pools are all AddressPools, Waiting the Services of type LoadBalancer that lack an address.
	Pools   []PoolStatus     `json:"pools,omitempty"`
	Waiting []WaitingService `json:"waiting,omitempty"`
	// Routes are faults of Ingresses and of objects of the Gateway API. MoreRoutes are not listed.
	Routes     []RouteFault `json:"routes,omitempty"`
	MoreRoutes int          `json:"moreRoutes,omitempty"`
	// BGP is nil without sessions.
	BGP *BGPStatus `json:"bgp,omitempty"`
}

// PoolStatus is an AddressPool.
type PoolStatus struct {
	Name string `json:"name"`
	Used int64  `json:"used"`
	Free int64  `json:"free"`
	// Problem is the reason for which it gives no addresses.
	Problem string `json:"problem,omitempty"`
}

// WaitingService is a Service of type LoadBalancer that lacks an address, or a port at one.
type WaitingService struct {
	Service string    `json:"service"` // NAMESPACE/NAME
	Reason  string    `json:"reason"`  // of its condition
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
	// Gateway is the NAMESPACE/NAME of the one whose addresses the Service has, or "".
	Gateway string `json:"gateway,omitempty"`
}

// Object is what the user has made that waits, with its kind.
func (s *WaitingService) Object() (kind, name string) {
	if s.Gateway != "" {
		return "Gateway", s.Gateway
	}
	return "Service", s.Service
}

// RouteFault is a fault of a route or a listener for which clients get errors.
type RouteFault struct {
	Object string `json:"object"` // such as "Ingress default/web"
	Text   string `json:"text"`
	// Mend is a command.
	Mend string `json:"mend,omitempty"`
}

// Conflict is an address that a server holds and for which another machine answers.
type Conflict struct {
	Address string    `json:"address"`
	MAC     string    `json:"mac"`
	Link    string    `json:"link"`
	Last    time.Time `json:"last"`
}

// PoolExhausted is the reason of a Service for which no pool has a free address.
const PoolExhausted = "PoolExhausted"

// conflictOver is the age of a conflict that does not last: each is reported once a minute.
const conflictOver = 5 * time.Minute

func (c *Conflict) over(now time.Time) bool { return now.Sub(c.Last) >= conflictOver }

// WarnsOfConflict reports whether the status has a warning of a server's conflict.
func (s *ClusterStatus) WarnsOfConflict(server string) bool {
	return s != nil && slices.ContainsFunc(s.Members, func(m MemberStatus) bool {
		return m.Name == server && slices.ContainsFunc(m.Conflicts, func(c Conflict) bool { return !c.over(s.Time) })
	})
}

// edge warns of what the cluster itself owes its users: the pools, and the addresses that it
// answers for. Wrong Services and routes are their users' faults, which the doctor has.
func (w *warner) edge() {
	for i := range w.status.Members {
		m := &w.status.Members[i]
		for _, c := range m.Conflicts {
			if !c.over(w.status.Time) {
				w.add(Attention, m.Name, "", faults.MendConflict,
					"another machine, %s, answers for %s on link %s of server %s, which holds it: clients may reach either",
					c.MAC, c.Address, c.Link, m.Name)
			}
		}
	}
	e := w.status.Edge
	if e == nil {
		return
	}
	for _, p := range e.Pools {
		if p.Problem != "" {
			w.add(Attention, "", "", "barque kubectl edit addresspool "+p.Name,
				"the AddressPool %s gives no addresses: %s", p.Name, p.Problem)
		}
	}
	w.bgp(e.BGP)
	var waiting, gateways []string
	for _, s := range e.Waiting {
		if s.Reason == PoolExhausted {
			if kind, name := s.Object(); kind == "Service" {
				waiting = append(waiting, name)
			} else {
				gateways = append(gateways, name)
			}
		}
	}
	w.exhausted(waiting, "Service", "Services")
	w.exhausted(gateways, "Gateway", "Gateways")
}

// exhausted warns of objects for which no pool has an address.
func (w *warner) exhausted(waiting []string, one, many string) {
	if len(waiting) > 0 {
		w.add(Attention, "", "",
			"add addresses to an AddressPool, or make another one: barque kubectl get addresspools -o wide",
			"no AddressPool has a free address for %s: %s", terminal.Plural(len(waiting), one, many), someNames(waiting))
	}
}

func someNames(names []string) string {
	if len(names) <= shownNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shownNames], ", "), len(names)-shownNames)
}

// SinceText is the end of a sentence: since when; empty when that is not known.
func SinceText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return " since " + at.UTC().Format(time.RFC3339)
}
