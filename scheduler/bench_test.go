package scheduler_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/scheduler"
)

// BenchmarkBind binds 5,000 waiting pods of 50 controllers to 1,000 nodes, through client-go's fake
// client. It reports pods per second from the start of the term.
func BenchmarkBind(b *testing.B) {
	for _, zones := range []int{0, 3} {
		b.Run(fmt.Sprintf("zones=%d", zones), func(b *testing.B) { benchmarkBind(b, 1000, 5000, zones) })
	}
}

func benchmarkBind(b *testing.B, nodes, pods, zones int) {
	for range b.N {
		b.StopTimer()
		s := newAPIServer(b)
		for i := range nodes {
			n := node(fmt.Sprintf("node-%04d", i), "32", "64Gi")
			if zones > 0 {
				n.Labels[v1.LabelTopologyZone] = fmt.Sprint(i % zones)
			}
			if err := s.client.Tracker().Add(n); err != nil {
				b.Fatal(err)
			}
		}
		for i := range pods {
			s.seed(pod(fmt.Sprintf("pod-%04d", i), "100m", "128Mi", ownedBy(fmt.Sprint(i%50))))
		}
		done, bound := make(chan struct{}), 0
		s.onBind = func(_ *v1.Binding, apply func() error) error {
			err := apply()
			s.mu.Lock()
			if bound++; bound == pods {
				close(done)
			}
			s.mu.Unlock()
			return err
		}
		sched := s.start(scheduler.Config{Seed: 1})
		b.StartTimer()
		depose := s.lead(sched)
		<-done
		b.StopTimer()
		depose()
	}
	b.ReportMetric(float64(pods*b.N)/b.Elapsed().Seconds(), "pods/s")
}
