package daemonset

import (
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
)

// How long a failed pod stays before it is replaced. The time doubles each time that the same node
// fails the same generation. Otherwise a kubelet that refuses a pod would get it again at once, for
// ever.
const (
	minStay = time.Second
	maxStay = 15 * time.Minute
)

// place is a node as one generation of a DaemonSet has met it.
type place struct {
	set        types.UID
	generation int64
	node       string
}

func placeOf(set *appsv1.DaemonSet, node string) place { return place{set.UID, set.Generation, node} }

type stay struct {
	wait  time.Duration
	since time.Time
}

// stays remembers where pods have failed.
type stays struct {
	mu    sync.Mutex
	known map[place]stay
}

// left returns how long the failed pod of a place is to stay.
func (s *stays) left(p place, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[p]
	return max(0, k.since.Add(k.wait).Sub(now))
}

// failed notes that the failed pod of a place is deleted. Long after the last one it begins anew.
func (s *stays) failed(p place, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, known := s.known[p]
	if !known || now.Sub(k.since) > 2*maxStay {
		k.wait = minStay
	} else {
		k.wait = min(2*k.wait, maxStay)
	}
	k.since = now
	s.known[p] = k
	for other, o := range s.known {
		if now.Sub(o.since) > 2*maxStay {
			delete(s.known, other)
		}
	}
}

func (s *stays) forget(set types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.known {
		if p.set == set {
			delete(s.known, p)
		}
	}
}
