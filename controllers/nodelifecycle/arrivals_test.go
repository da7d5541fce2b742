package nodelifecycle_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// A pod bound by a server whose clock was an hour ahead has its toleration, without another hour.
// It counts from the taint, or, for a later pod, from when any server first saw the pod.
func TestPodsBoundByAClockThatIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, oneZone)
		ahead := func(name string) { w.runPatientAt(name, "n1", 60, time.Now().Add(time.Hour)) }
		ahead("before")
		time.Sleep(30 * time.Second)
		w.taintBy("n1", "memory")
		w.abdicate()
		time.Sleep(20 * time.Second)
		ahead("later")
		time.Sleep(10 * time.Second)
		w.lead()
		leavesIn(w, "before", 30*time.Second)
		leavesIn(w, "later", 19*time.Second) // leavesIn took a second more
	})
}
