package group

// State is the member state of a server: the decision about it, in addition to its place in Raft's
// configuration of the group.
type State string

const (
	// Regular is a server about which nothing was decided. It gets a vote when it can have one.
	Regular State = ""
	// Standby is a server that is to stay without a vote.
	Standby State = "standby"
	// Leaving is a server that is on its way out.
	Leaving State = "leaving"
	// Removed is a server that was taken out of the group.
	Removed State = "removed"
	// Dropped is a server that was removed from the group because it died before it had its vote.
	// It joins again by itself. The decision is for people, and is deleted when the server is a
	// member.
	Dropped State = "dropped"
	// Unreadable is a server about which a newer version has decided something. It stays as it is.
	Unreadable State = "unreadable"
)
