package nodeauth

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func ask(node, verb, resource, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: kubelet(node), Verb: verb, Resource: resource, Name: name, Namespace: "ns", ResourceRequest: true,
	}
}

// TestAnInformerThatIsBehind: the store has bindings that the informer has not seen, and decides.
func TestAnInformerThatIsBehind(t *testing.T) {
	uses := corev1.PodSpec{ServiceAccountName: "robot", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}
	a := newAuthorizer(t, func(_ context.Context, node string) ([]*corev1.Pod, error) {
		if node == "n1" {
			return []*corev1.Pod{pod("bound", "n1", uses), pod("moved", "n1", corev1.PodSpec{})}, nil
		}
		return nil, nil
	})
	for _, p := range []*corev1.Pod{pod("bound", "", uses), pod("moved", "n2", corev1.PodSpec{})} {
		if err := a.pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what  string
		attrs authorizer.AttributesRecord
		want  bool
	}{
		{"a token", ask("n1", "create", "serviceaccounts", "robot"), true},
		{"a secret", ask("n1", "get", "secrets", "pull"), true},
		{"a secret that no pod refers to", ask("n1", "get", "secrets", "other"), false},
		{"a pod that was bound", ask("n1", "get", "pods", "bound"), true},
		{"a pod that was made again on the node", ask("n1", "get", "pods", "moved"), true},
		{"a token, from another node", ask("n2", "create", "serviceaccounts", "robot"), false},
		{"a pod of another node", ask("n2", "get", "pods", "bound"), false},
	} {
		got, reason, err := a.Authorize(t.Context(), c.attrs)
		if err != nil || (got == authorizer.DecisionAllow) != c.want {
			t.Errorf("%s: %v (%s) %v", c.what, got, reason, err)
		}
	}
}

// TestAStoreThatCannotBeRead: a request is an error, and not a refusal, while the pods of the node
// are not known.
func TestAStoreThatCannotBeRead(t *testing.T) {
	broken := errors.New("no leader")
	a := newAuthorizer(t, func(context.Context, string) ([]*corev1.Pod, error) { return nil, broken })
	if got, reason, err := a.Authorize(t.Context(),
		ask("n1", "get", "secrets", "x")); got != authorizer.DecisionNoOpinion || reason != "" ||
		!errors.Is(err, broken) {
		t.Errorf("%v (%s) %v", got, reason, err)
	}
	if err := a.pods.Add(pod("p", "n1", corev1.PodSpec{ServiceAccountName: "robot"})); err != nil {
		t.Fatal(err)
	}
	if got, _, err := a.Authorize(t.Context(),
		ask("n1", "create", "serviceaccounts", "robot")); got != authorizer.DecisionAllow || err != nil {
		t.Errorf("what the informer knows: %v, %v", got, err)
	}
}

// TestRefusalsAreBounded: a node that repeats a request without permission costs few reads, and
// takes no other node's.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := map[string]int{}
		a := newAuthorizer(t, func(_ context.Context, node string) ([]*corev1.Pod, error) {
			reads[node]++
			return []*corev1.Pod{pod("p", node, corev1.PodSpec{ServiceAccountName: "robot"})}, nil
		})
		refused := func(node, resource, name string) bool {
			t.Helper()
			got, _, err := a.Authorize(t.Context(), ask(node, "get", resource, name))
			if err != nil {
				t.Error(err)
			}
			return got != authorizer.DecisionAllow
		}
		for range 1000 {
			if !refused("greedy", "secrets", "x") {
				t.Fatal("it got a secret that no pod refers to")
			}
		}
		if reads["greedy"] != readsAtOnce {
			t.Errorf("1,000 refusals took %d reads, want %d", reads["greedy"], readsAtOnce)
		}
		if !refused("greedy", "serviceaccounts", "robot") {
			t.Error("a node without reads was allowed what only the store knows")
		}
		if refused("modest", "serviceaccounts", "robot") {
			t.Error("a node was refused because of another one's reads")
		}
		time.Sleep(time.Second)
		if refused("greedy", "serviceaccounts", "robot") {
			t.Error("a second later it was refused what its pod refers to")
		}
		for range 1000 {
			refused("greedy", "secrets", "x")
		}
		if want := readsAtOnce + readsPerSecond; reads["greedy"] != want {
			t.Errorf("a second later there were %d reads, want %d", reads["greedy"], want)
		}
	})
}

// TestRequestsShareReads: requests that come while the store is read for their node share the next
// read, since the one under way may have begun before the binding that they are about.
func TestRequestsShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = time.Second
		var reads atomic.Int32
		var bound atomic.Bool
		a := newAuthorizer(t, func(context.Context, string) (pods []*corev1.Pod, _ error) {
			reads.Add(1)
			if bound.Load() {
				pods = append(pods, pod("p", "n1", corev1.PodSpec{ServiceAccountName: "robot"}))
			}
			time.Sleep(took)
			return pods, nil
		})
		var asking sync.WaitGroup
		token := func(want authorizer.Decision) {
			asking.Go(func() {
				got, _, err := a.Authorize(t.Context(), ask("n1", "create", "serviceaccounts", "robot"))
				if got != want || err != nil {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
			})
		}
		token(authorizer.DecisionNoOpinion)
		synctest.Wait() // it reads
		bound.Store(true)
		for range 100 {
			token(authorizer.DecisionAllow)
		}
		gaveUp, cancel := context.WithTimeout(t.Context(), took/2)
		defer cancel()
		if _, _, err := a.Authorize(gaveUp, ask("n1", "create", "serviceaccounts", "robot")); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("a request that was given up: %v", err)
		}
		asking.Wait()
		if n := reads.Load(); n != 2 {
			t.Errorf("%d reads, want 2", n)
		}
	})
}
