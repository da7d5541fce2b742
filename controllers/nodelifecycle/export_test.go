package nodelifecycle

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// CountLooks counts from now on how often the controller looks at single nodes. It is called
// between New and Run.
func CountLooks(c *Controller) *atomic.Int64 {
	l := &countingLister{NodeLister: c.list}
	c.list = l
	return &l.looks
}

type countingLister struct {
	corelisters.NodeLister
	looks atomic.Int64
}

func (l *countingLister) Get(name string) (*corev1.Node, error) {
	l.looks.Add(1)
	return l.NodeLister.Get(name)
}
