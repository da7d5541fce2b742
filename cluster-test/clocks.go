package clustertest

import (
	"errors"
	"time"

	"github.com/barque/barque/cluster-test/clock"
)

// MoveClocks moves the wall clock of Barque's own processes on the nodes: the node's process and
// its containerd, no pods. A process that is started later has the machine's clock. back ends it;
// it must be called also when there is an error. A node without such a process is an error.
func (c *Cluster) MoveClocks(by time.Duration, nodes ...string) (back func() error, err error) {
	var moved []*clock.Moved
	back = func() (err error) {
		for _, m := range moved {
			err = errors.Join(err, m.Back())
		}
		moved = nil
		return err
	}
	for _, n := range nodes {
		found, err := c.processes(n)
		if err != nil {
			return back, err
		}
		for _, pid := range found {
			m, err := clock.Move(pid, by)
			if err != nil {
				return back, err
			}
			moved = append(moved, m)
		}
	}
	return back, nil
}
