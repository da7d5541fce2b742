package clusterstatus

import "time"

// auditLossFresh is how long a loss of audit events is a warning after the last one.
const auditLossFresh = time.Hour

// auditLosses warns of audit events that a server has lost lately.
func (w *warner) auditLosses(m *MemberStatus) {
	for _, l := range m.AuditLosses {
		if w.status.Time.Sub(l.Last) > auditLossFresh {
			continue
		}
		mend := "see that the webhook of " + l.Target + " answers, in time for the number of events"
		switch l.Sink {
		case "log":
			mend = "df -h " + l.Target + "; iostat -x 1"
		case "limit":
			mend = "barque audit --user system:anonymous, for their addresses; block them, or raise the limit with --audit-policy-file"
		case "nodes":
			mend = "barque audit --user the node that is named: is its machine as it should be, and its Node the right one? Else remove the node"
		}
		w.add(Attention, m.Name, m.Name, mend,
			"server %s has lost %d audit events for %s since it was started, the last one at %s: %s",
			m.Name, l.Events, l.Target, l.Last.UTC().Format(time.RFC3339), l.Reason)
	}
}
