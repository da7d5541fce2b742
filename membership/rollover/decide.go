package rollover

// Action is an action of a leader.
type Action int

// Actions.
const (
	Rest    Action = iota // there is nothing to do
	Wait                  // members have not done the last step
	Advance               // write the next step
	Repair                // write the state that this server uses
)

// Decide returns the leader's action. stored is the generation of the state in the store, 0 if none
// counts, and step is empty when that is at rest. late are the members that its next step waits
// for. own is the generation that the leader uses. The first one of a cluster is in no store.
func Decide(stored uint64, step string, late []string, own, first uint64) Action {
	switch {
	case stored < own && own > first:
		return Repair
	case step == "":
		return Rest
	case len(late) > 0:
		return Wait
	}
	return Advance
}
