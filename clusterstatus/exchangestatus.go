package clusterstatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
)

// How far the exchange of the CA is, in the status of the cluster and for people.

// exchange adds the progress of the CA's exchange: the view of the leader, which drives it, unless
// another server is ahead.
func (a *assembly) exchange() {
	s := a.status
	for _, name := range slices.Sorted(maps.Keys(a.cas)) {
		ca := a.cas[name]
		if s.CA == nil || ca.Generation > s.CA.Generation || ca.Generation == s.CA.Generation && name == s.Leader {
			s.CA = ca
		}
		if m := a.members[name]; m != nil {
			m.CAProblem = ca.Problem
		}
	}
	if s.CA != nil {
		s.CA = new(*s.CA)
		s.CA.Problem = "" // of one server, which reports it itself
	}
}

// ExchangeUnderWay tells whether the CA is being exchanged.
func (s *ClusterStatus) ExchangeUnderWay() bool { return s.CA != nil && s.CA.Step != pki.Settled }

// ExchangeText describes the progress of the running exchange of the CA.
func ExchangeText(s *exchange.Status) string {
	text := "step 1 of 3, the new CA is made known to all nodes"
	if s.Step == pki.Issuing {
		text = "step 2 of 3, all nodes get certificates of the new CA"
	}
	if len(s.Waiting) > 0 {
		text += "; it waits: " + strings.Join(s.Waiting, "; ")
	}
	return text
}

// ExchangeWays lists the next steps for the running exchange of the CA.
func ExchangeWays(s *exchange.Status) string {
	ways := []string{"barque cert rotate --ca waits for its end"}
	if len(s.Waiting) > 0 {
		ways = append(ways, "start the nodes that show no life, or remove them from the cluster (barque cluster remove, barque kubectl delete node)")
		if !s.Forced {
			ways = append(ways, "barque cert rotate --ca --force continues without them")
		}
	}
	if s.Step == pki.Spreading {
		ways = append(ways, "barque cert rotate --ca --undo gives it up")
	}
	return strings.Join(ways, "; ")
}

// exchangePatience is the time after which a step of the CA's exchange is worth a warning. A step
// takes seconds when all nodes are up, and an agent asks every minute.
const exchangePatience = 2 * time.Minute

// exchange warns of a stalled exchange of the CA, and of servers that cannot take it over.
func (w *warner) exchange() {
	if w.status.ExchangeUnderWay() && len(w.status.CA.Waiting) > 0 && w.status.Time.Sub(w.status.CA.Since) > exchangePatience {
		w.add(Attention, "", "", ExchangeWays(w.status.CA), "the exchange of the CA, which began at %s, does not go on: %s", w.status.CA.Since.UTC().Format(time.RFC3339), ExchangeText(w.status.CA))
	}
	for i := range w.status.Members {
		if m := &w.status.Members[i]; m.CAProblem != "" {
			w.add(Attention, m.Name, m.Name, w.by.Look(m.Name, m.Role), "server %s does not follow the exchange of the CA: %s", m.Name, m.CAProblem)
		}
	}
}

// ExchangeWarning is the text of `cert show` about a running exchange of the CA.
func ExchangeWarning(s *exchange.Status) string {
	return fmt.Sprintf("the CA is being exchanged since %s: %s. Ways on: %s", s.Since.UTC().Format(time.RFC3339), ExchangeText(s), ExchangeWays(s))
}
