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
