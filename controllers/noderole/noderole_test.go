package noderole_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/controllers/noderole"
)

// roles is gossip's knowledge of roles, which may change.
type roles struct {
	mu    sync.Mutex
	known map[string]bool
}

func (r *roles) IsServer(node *corev1.Node) (server, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	server, known = r.known[node.Name]
	return server, known
}

func (r *roles) set(node string, server bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[node] = server
}

func TestOnlyServersAreLabelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := func(name string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"own": "kept"}}}
		}
		client := fake.NewClientset(node("agent"), node("late"), node("server"))
		factory := informers.NewSharedInformerFactory(client, 0)
		gossip := &roles{known: map[string]bool{"agent": false, "server": true}}
		c, err := noderole.New(
			noderole.Config{Informers: factory, Servers: gossip, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
		patched, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, client) }()
		await(t, patched, "server")
		gossip.set("late", true) // a node can be registered before gossip has heard of it
		await(t, patched, "late")
		agent, err := client.CoreV1().Nodes().Get(ctx, "agent", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := agent.Labels[noderole.Label]; ok {
			t.Error("an agent was labelled as the control plane")
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		factory.Shutdown()
	})
}

// await waits until the node is shown with the label.
func await(t *testing.T, nodes watch.Interface, name string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case event := <-nodes.ResultChan():
			node := event.Object.(*corev1.Node)
			if _, ok := node.Labels[noderole.Label]; !ok || node.Name != name {
				continue
			}
			if node.Labels["own"] != "kept" {
				t.Fatalf("node %s has the labels %v", node.Name, node.Labels)
			}
			return
		case <-deadline:
			t.Fatalf("%s was not labelled", name)
		}
	}
}
