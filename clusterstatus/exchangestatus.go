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

// ExchangeUnderWay reports whether the CA, or the key of service accounts, is being exchanged.
func (s *ClusterStatus) ExchangeUnderWay() bool { return s.CA != nil && s.CA.Step != pki.Settled }

// ExchangeOf names the keys that are exchanged.
func ExchangeOf(s *exchange.Status) string {
	if s.Accounts {
		return "the key of service accounts"
	}
	return "the CA"
}

// exchangeFlag is the flag of `barque cert rotate` for the exchange that is under way.
func exchangeFlag(s *exchange.Status) string {
	if s.Accounts {
		return "--service-accounts"
	}
	return "--ca"
}

// ExchangeText describes the progress of the running exchange.
func ExchangeText(s *exchange.Status) string {
	text := ""
	switch {
	case s.Accounts && s.Step == pki.Issuing:
		text = "step 2 of 2, all servers sign with the new key"
	case s.Accounts:
		text = "step 1 of 2, the new key is made known to all servers"
	case s.Step == pki.Issuing:
		text = "step 2 of 3, all nodes get certificates of the new CA"
	default:
		text = "step 1 of 3, the new CA is made known to all nodes"
	}
	if len(s.Waiting) > 0 {
		text += "; it waits: " + strings.Join(s.Waiting, "; ")
	}
	return text
}

// ExchangeWays lists the next steps for the running exchange.
func ExchangeWays(s *exchange.Status) string {
	rotate := "barque cert rotate " + exchangeFlag(s)
	ways := []string{rotate + " waits for its end"}
	if len(s.Waiting) > 0 {
		ways = append(ways,
			"start the nodes that show no life, or remove them from the cluster (barque cluster remove, barque kubectl delete node)")
		if !s.Forced {
			force := rotate + " --force continues without them"
			if s.Spreading() && !s.Accounts {
				force += ", and without waiting for extension API servers"
			}
			ways = append(ways, force)
		}
	}
	if s.Step == pki.Spreading {
		ways = append(ways, rotate+" --undo gives it up")
	}
	return strings.Join(ways, "; ")
}

// exchangePatience is the time after which a step of the CA's exchange is worth a warning. A step
// takes seconds when all nodes are up, and an agent asks every minute.
const exchangePatience = 2 * time.Minute

// exchange warns of a stalled exchange, and of servers that cannot take it over.
func (w *warner) exchange() {
	if w.status.ExchangeUnderWay() && len(w.status.CA.Waiting) > 0 &&
		w.status.Time.Sub(w.status.CA.Since) > exchangePatience {
		w.add(Attention, "", "", ExchangeWays(w.status.CA), "the exchange of %s, which began at %s, does not go on: %s",
			ExchangeOf(w.status.CA), w.status.CA.Since.UTC().Format(time.RFC3339), ExchangeText(w.status.CA))
	}
	for i := range w.status.Members {
		if m := &w.status.Members[i]; m.CAProblem != "" {
			w.add(Attention, m.Name, m.Name, w.by.Look(m.Name, m.Role),
				"server %s does not follow the exchange of the CA: %s", m.Name, m.CAProblem)
		}
	}
}

// ExchangeWarning is the text of `cert show` about a running exchange of the CA.
func ExchangeWarning(s *exchange.Status) string {
	text := fmt.Sprintf("the exchange of %s began at %s: %s. Ways on: %s", ExchangeOf(s),
		s.Since.UTC().Format(time.RFC3339), ExchangeText(s), ExchangeWays(s))
	if len(s.Unrecorded) > 0 {
		text += ". Between servers certificates of the CA before count until its end: " + Unrecorded(s)
	}
	return text
}

// Unrecorded tells which servers keep the others from judging each other in an exchange of the CA,
// and the way on.
func Unrecorded(s *exchange.Status) string {
	return "these servers have recorded no key that the others could know them by: " +
		strings.Join(s.Unrecorded, ", ") + "; upgrade them, start them, or remove them"
}
