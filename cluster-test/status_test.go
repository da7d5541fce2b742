package clustertest

import "testing"

func TestWellBut(t *testing.T) {
	slow := Warning{Text: "the disk of server s1 is slow: half of its writes to the log take 61ms or more"}
	far := Warning{Text: "the way from server s1 to s2 and back takes 132ms"}
	dead := Warning{Text: "server s3 does not answer: connection refused"}
	for name, c := range map[string]struct {
		status Status
		well   bool
	}{
		"healthy":                  {Status{Leader: "s1", Health: "healthy"}, true},
		"busy":                     {Status{Leader: "s1", Health: "degraded", Warnings: []Warning{slow, far}}, true},
		"busy, and a server dead":  {Status{Leader: "s1", Health: "degraded", Warnings: []Warning{slow, dead}}, false},
		"ill for no reason":        {Status{Leader: "s1", Health: "degraded"}, false},
		"healthy, with a warning":  {Status{Leader: "s1", Health: "healthy", Warnings: []Warning{slow}}, false},
		"no leader":                {Status{Health: "noQuorum"}, false},
		"healthy without a leader": {Status{Health: "healthy"}, false},
	} {
		if err := c.status.wellBut(ofTheMachine); (err == nil) != c.well {
			t.Errorf("%s: %v", name, err)
		}
	}
}
