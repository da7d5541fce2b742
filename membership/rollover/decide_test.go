package rollover

import "testing"

func TestDecide(t *testing.T) {
	late := []string{"s3"}
	for what, c := range map[string]struct {
		stored uint64
		step   string
		late   []string
		own    uint64
		first  uint64
		want   Action
	}{
		"a cluster that has begun":                    {0, "", nil, 1, 1, Rest},
		"at rest":                                     {4, "", nil, 4, 1, Rest},
		"at rest, and nobody asks who is late":        {4, "", late, 4, 1, Rest},
		"a member has not done the step":              {4, "use", late, 4, 1, Wait},
		"all have":                                    {4, "use", nil, 4, 1, Advance},
		"the leader is behind, and is not waited for": {4, "use", nil, 3, 1, Advance},
		"the store was emptied":                       {0, "", nil, 4, 1, Repair},
		"an older state, at rest":                     {3, "", nil, 4, 1, Repair},
		"an older state, of a step that all follow":   {2, "add", nil, 4, 1, Repair},
		"an older state, whoever is late":             {2, "add", late, 4, 1, Repair},
		"the first generation is in no store":         {0, "", nil, 0, 0, Rest},
		"the one after it is":                         {0, "", nil, 1, 0, Repair},
	} {
		if got := Decide(c.stored, c.step, c.late, c.own, c.first); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}
