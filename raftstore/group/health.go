package group

import "time"

// Health is how a member does, as the leader sees it.
type Health struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"` // why not, or why it has no vote
	// State is what was decided about it. Servers of earlier versions, and scripts, know the name.
	State State `json:"standing,omitempty"`
	// Stable is for how long it has been well; Silent for how long it has not answered.
	Stable time.Duration `json:"stable"`
	Silent time.Duration `json:"silent,omitempty"`
	// Blocked is for how long it could not lose its vote or leave, as was recorded; Reason says
	// why.
	Blocked time.Duration `json:"blocked,omitempty"`
	// Lag is how many entries of the log it is behind, and LagFor how long ago the first of them
	// was written; 0 when it does not answer.
	Lag    uint64        `json:"lag,omitempty"`
	LagFor time.Duration `json:"lagFor,omitempty"`
}
