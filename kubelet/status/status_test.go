package status

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func pod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "5"}}
}

func TestDifference(t *testing.T) {
	p := pod()
	p.Status.Phase = v1.PodPending
	p.Status.Conditions = []v1.PodCondition{{Type: "example.com/gate", Status: v1.ConditionTrue},
		{Type: v1.PodReady, Status: v1.ConditionFalse}}
	same := p.Status.DeepCopy()
	same.Conditions = same.Conditions[1:] // another writer's condition is not the kubelet's to report
	if patch, err := difference(p, same); err != nil || patch != nil {
		t.Errorf("patch %s %v, want none", patch, err)
	}
	next := v1.PodStatus{Phase: v1.PodRunning,
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue},
			{Type: "example.com/gate", Status: v1.ConditionFalse}}}
	patch, err := difference(p, &next)
	if err != nil {
		t.Fatal(err)
	}
	text := string(patch)
	if !strings.Contains(text, `"uid":"u"`) || !strings.Contains(text, `"phase":"Running"`) ||
		strings.Contains(text, "gate\",\"status\":\"False") {
		t.Errorf("patch %s", text)
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"5", "10", true}, {"10", "5", false}, {"5", "5", false}, {"", "5", false}, {"x", "y", false}} {
		if older(c.a, c.b) != c.want {
			t.Errorf("older(%q, %q) is not %v", c.a, c.b, c.want)
		}
	}
}

// inBubble runs a manager over an API server in memory, in virtual time.
func inBubble(t *testing.T, test func(client *fake.Clientset, m *Manager)) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod())
		m := New(client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		test(client, m)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestStatusIsTriedUntilItIsWritten(t *testing.T) {
	inBubble(t, func(client *fake.Clientset, m *Manager) {
		var tries atomic.Int32
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if tries.Add(1) < 4 {
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		m.Set(pod(), v1.PodStatus{Phase: v1.PodRunning})
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		got, err := client.CoreV1().Pods("ns").Get(context.Background(), "p", metav1.GetOptions{})
		if err != nil || got.Status.Phase != v1.PodRunning || tries.Load() != 4 {
			t.Errorf("%v %v after %d tries", got.Status, err, tries.Load())
		}
		client.ClearActions()
		m.Set(pod(), v1.PodStatus{Phase: v1.PodRunning}) // nothing new
		synctest.Wait()
		if actions := client.Actions(); len(actions) != 0 {
			t.Errorf("wrote what was known: %v", actions)
		}
	})
}

// TestReplacedPod: no status is written for a pod whose name another one has by now: the API server
// would refuse the change of a UID.
func TestReplacedPod(t *testing.T) {
	inBubble(t, func(client *fake.Clientset, m *Manager) {
		var tries atomic.Int32
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries.Add(1)
			return true, nil, apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p",
				field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "of before", "field is immutable")})
		})
		before := pod()
		before.UID = "of before"
		m.Set(before, v1.PodStatus{Phase: v1.PodRunning})
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		if tries.Load() != 1 {
			t.Errorf("tried %d times", tries.Load())
		}
		m.Set(pod(), v1.PodStatus{Phase: v1.PodRunning}) // refused for another reason
		time.Sleep(time.Minute)                          // virtual
		synctest.Wait()
		if tries.Load() < 3 {
			t.Errorf("tried %d times in all", tries.Load())
		}
	})
}

func TestFinishWritesTheLastStatusFirst(t *testing.T) {
	inBubble(t, func(client *fake.Clientset, m *Manager) {
		m.Set(pod(), v1.PodStatus{Phase: v1.PodFailed})
		m.Finish(pod())
		synctest.Wait()
		var verbs []string
		for _, a := range client.Actions() {
			verbs = append(verbs, a.GetVerb())
		}
		if got := strings.Join(verbs, " "); got != "patch delete" {
			t.Errorf("did %q", got)
		}
		m.Forget("u")
		m.Finish(pod())
		synctest.Wait()
	})
}
