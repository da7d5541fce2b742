package framework

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// Nominator has the pods for which preemption frees a node, and these nodes. Pods of lower priority
// do not take the room meanwhile. It is safe for concurrent use.
type Nominator struct {
	// waiting is len(nodeOf), readable without the lock: it is nearly always 0.
	waiting atomic.Int64

	mu     sync.RWMutex
	nodeOf map[types.UID]string
	onNode map[string]map[types.UID]fwk.PodInfo
}

// NewNominator returns an empty one.
func NewNominator() *Nominator {
	return &Nominator{nodeOf: map[types.UID]string{}, onNode: map[string]map[types.UID]fwk.PodInfo{}}
}

// Set nominates node for the pod, in place of any other. An empty node forgets the pod.
func (n *Nominator) Set(p fwk.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	uid := p.GetPod().UID
	n.remove(uid)
	if node == "" {
		return
	}
	n.nodeOf[uid] = node
	n.waiting.Store(int64(len(n.nodeOf)))
	if n.onNode[node] == nil {
		n.onNode[node] = map[types.UID]fwk.PodInfo{}
	}
	n.onNode[node][uid] = p
}

// Forget drops the pod.
func (n *Nominator) Forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(uid)
}

func (n *Nominator) remove(uid types.UID) {
	node, ok := n.nodeOf[uid]
	if !ok {
		return
	}
	delete(n.nodeOf, uid)
	n.waiting.Store(int64(len(n.nodeOf)))
	if delete(n.onNode[node], uid); len(n.onNode[node]) == 0 {
		delete(n.onNode, node)
	}
}

// Node returns the node that is nominated for the pod, or "".
func (n *Nominator) Node(uid types.UID) string {
	if n.waiting.Load() == 0 {
		return ""
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.nodeOf[uid]
}

// On returns the pods that wait for node, in a stable order.
func (n *Nominator) On(node string) []fwk.PodInfo {
	if n.waiting.Load() == 0 {
		return nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if len(n.onNode[node]) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Values(n.onNode[node]), func(a, b fwk.PodInfo) int {
		return strings.Compare(string(a.GetPod().UID), string(b.GetPod().UID))
	})
}
