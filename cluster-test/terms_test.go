package clustertest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// workStart is how soon after an election each of the leader's routines should work. It is a second on a machine that has
// the time; here others share two cores.
const workStart = 5 * time.Second

// checkWorkStart asks a leader how long after its election its routines have begun to work.
func (s *Space) checkWorkStart(leader string) {
	s.Helper()
	servers, err := s.Servers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	i := slices.IndexFunc(servers, func(p Process) bool { return p.Name == leader })
	if i < 0 {
		s.Fatalf("%s is no server", leader)
	}
	const metric = `barque_leader_work_start_seconds{routine="`
	Eventually(s, workStart, "all of the leader's routines work", func(context.Context) error {
		page := s.Kubectl(s, "get", "--raw", "/metrics", "--server", "https://"+net.JoinHostPort(servers[i].Address, apiPort))
		var slowest time.Duration
		var name string
		worked := map[string]bool{}
		for line := range strings.Lines(page) {
			rest, ok := strings.CutPrefix(line, metric)
			if !ok {
				continue
			}
			routine, value, _ := strings.Cut(rest, `"} `)
			after, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return err
			}
			worked[routine] = true
			if took := time.Duration(after * float64(time.Second)); took > slowest {
				slowest, name = took, routine
			}
		}
		// The values are of this term only. These are among those that people wait for.
		for _, routine := range []string{"deployment", "replicaset", "scheduler", "nodelifecycle", "endpointslice"} {
			if !worked[routine] {
				return fmt.Errorf("%s has not begun, these have: %v", routine, slices.Sorted(maps.Keys(worked)))
			}
		}
		if slowest > workStart {
			s.Errorf("%s worked %v after the election of %s, want %v at most", name, slowest, leader, workStart)
		}
		s.Logf("%d routines of the leader worked within %v of its election; the slowest was %s", len(worked), slowest.Round(time.Millisecond), name)
		return nil
	})
}
