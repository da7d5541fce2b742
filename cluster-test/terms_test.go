package clustertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// slowestStart is how soon after an election all of the leader's routines work, on a machine that
// others use, too. That they work within a second where there is the time for it is
// controllers.TestEveryControllerWorksWithinASecondOfTheElection's; here it is logged.
const slowestStart = 15 * time.Second

// checkWorkStart asks the leader how long after its election its routines have begun to work.
func (s *Space) checkWorkStart() {
	s.Helper()
	servers, err := s.Servers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	const metric = `barque_leader_work_start_seconds{routine="`
	Eventually(s, deadline, "all of the leader's routines work", func(ctx context.Context) error {
		status, err := s.Status(ctx) // a busy machine may have brought another one
		if err != nil {
			return err
		}
		leader := status.Leader
		i := slices.IndexFunc(servers, func(p Process) bool { return p.Name == leader })
		if i < 0 {
			return fmt.Errorf("%q leads, which is no server", leader)
		}
		r := s.KubectlResult(ctx, "", "get", "--raw", "/metrics", "--server",
			"https://"+net.JoinHostPort(servers[i].Address, apiPort))
		if r.Error != nil {
			return r.Error
		}
		page := r.Out
		worked := map[string]time.Duration{}
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
			worked[routine] = time.Duration(after * float64(time.Second))
		}
		// The values are of this term only. These are among those that people wait for.
		for _, routine := range []string{"deployment", "replicaset", "scheduler", "nodelifecycle", "endpointslice"} {
			if _, is := worked[routine]; !is {
				return fmt.Errorf("%s has not begun, these have: %v", routine, slices.Sorted(maps.Keys(worked)))
			}
		}
		order := slices.SortedFunc(maps.Keys(worked),
			func(a, b string) int { return cmp.Compare(worked[a], worked[b]) })
		name, median := order[len(order)-1], worked[order[len(order)/2]]
		if worked[name] > slowestStart {
			s.Errorf("%s worked %v after the election of %s; want %v at most", name, worked[name], leader, slowestStart)
		}
		s.Logf("%d routines of the leader worked within %v of its election, half of them within %v; the slowest was %s",
			len(worked), worked[name].Round(time.Millisecond), median.Round(time.Millisecond), name)
		return nil
	})
}
