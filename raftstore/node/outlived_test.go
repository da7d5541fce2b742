package node

import "testing"

// Nobody is outlived but for certain: when a majority of the voters had no leader at the time of the recovery.
func TestJudgeFindings(t *testing.T) {
	for name, c := range map[string]struct {
		f    findings
		want judgement
	}{
		"disowned":                                   {findings{disowned: true, out: 3, voters: 3}, isWell},
		"one was in touch":                           {findings{well: true, out: 2, voters: 3}, isWell},
		"a leader that was":                          {findings{well: true, leads: true, voters: 3}, isWell},
		"a majority was not":                         {findings{out: 2, voters: 3}, isOutlived},
		"a leader whose majority was not":            {findings{out: 2, voters: 3, leads: true, led: true}, isOutlived},
		"half of them were not":                      {findings{out: 2, voters: 4}, inDoubt},
		"nobody answers":                             {findings{voters: 3}, inDoubt},
		"no voter is known":                          {findings{}, inDoubt},
		"it follows":                                 {findings{out: 2, voters: 3, led: true}, forOthers},
		"nobody knows, and it follows":               {findings{voters: 3, led: true}, forOthers},
		"a leader in doubt":                          {findings{out: 1, voters: 3, leads: true}, inDoubt},
		"a leader, at the moment of it, or before":   {findings{out: 1, voters: 3, leads: true, goesOn: true}, notYet},
		"the same, but does not lead and is not led": {findings{out: 1, voters: 3, goesOn: true}, inDoubt},
		"the only voter":                             {findings{out: 1, voters: 1, leads: true}, isOutlived},
	} {
		if got := c.f.judge(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
