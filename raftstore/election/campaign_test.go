package election

import (
	"encoding/json"
	"testing"
)

// TestEarlierVersionsUnderstandQuestions: in an upgrade servers of two versions ask each other. The
// names on the wire stay.
func TestEarlierVersionsUnderstandQuestions(t *testing.T) {
	for want, message := range map[string]any{
		`{"leader":"s1","why":"gone"}`:   question{Leader: "s1", Why: gone},
		`{"leader":"s1","why":"silent"}`: question{Leader: "s1", Why: silent},
		`{"leader":"","why":"vacant"}`:   question{Why: absent},
		`{"lost":true,"stands":true,"candidate":true,"id":"s2","index":7,"term":3}`: Answer{
			Lost: true, WouldCampaign: true, Candidate: true, ID: "s2", Index: 7, Term: 3,
		},
		`{"lost":true,"stands":true,"candidate":true,"campaign":4,"id":"s2","index":7,"term":3}`: Answer{
			Lost: true, WouldCampaign: true, Candidate: true, Campaign: 4, ID: "s2", Index: 7, Term: 3,
		},
		`{"lost":false,"stands":false,"id":"s2","index":0,"term":0}`: Answer{ID: "s2"},
	} {
		if got, err := json.Marshal(message); err != nil || string(got) != want {
			t.Errorf("%+v is %s, %v, want %s", message, got, err, want)
		}
	}
}

// TestCandidatesThatAreWaitedFor: a server leaves the campaign to one with a longer log. It does
// not wait for one whose campaign comes to nothing.
func TestCandidatesThatAreWaitedFor(t *testing.T) {
	const term = 7 // of the server that asks
	lost := question{Leader: "s1", Why: silent}
	for _, c := range []struct {
		name   string
		answer Answer
		q      question
		vain   bool
	}{
		{"it does not campaign yet", Answer{Campaign: term}, lost, false},
		{"it campaigns for the same question", Answer{Candidate: true, Campaign: term + 1}, lost, false},
		{"others refuse its pre-vote: they follow the lost leader", Answer{Candidate: true, Campaign: term}, lost,
			true},
		{"the same, and the leader's process is gone", Answer{Candidate: true, Campaign: term},
			question{Leader: "s1", Why: gone}, true},
		{"the same, in a version that does not say its term", Answer{Candidate: true}, lost, false},
		{"its election has brought no leader", Answer{Candidate: true, Campaign: term}, question{Why: absent}, true},
		{"the same, in a version that does not say its term", Answer{Candidate: true}, question{Why: absent}, true},
		{"it campaigns after an election in vain", Answer{Candidate: true, Campaign: term + 1}, question{Why: absent},
			false},
	} {
		if got := c.answer.inVain(c.q, term); got != c.vain {
			t.Errorf("%s: in vain %v, want %v", c.name, got, c.vain)
		}
	}
}
