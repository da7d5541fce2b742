package group

import "time"

// Health is how a member does, as the leader sees it.
type Health struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"` // why not, or why it has no vote
	// State is the decision about it. Servers of earlier versions, and scripts, use the name.
	State State `json:"standing,omitempty"`
	// Stable is for how long it has been well; Silent for how long it has not answered.
	Stable time.Duration `json:"stable"`
	Silent time.Duration `json:"silent,omitempty"`
	// Blocked is how long its demotion or removal has been blocked; Reason has the cause.
	Blocked time.Duration `json:"blocked,omitempty"`
	// Lag is how many entries of the log it is behind, and LagFor the age of the first of them; 0
	// if it does not answer.
	Lag    uint64        `json:"lag,omitempty"`
	LagFor time.Duration `json:"lagFor,omitempty"`
}
