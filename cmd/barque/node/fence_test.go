package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/storage"
)

// The leader's process is stopped in the middle of a reconcile: the controller of ReplicaSets has decided to create a pod
// and has not sent it. The others elect a leader, which creates the pods. When the old one goes on, its write
// arrives, and is refused for its term: nothing of the deposed leadership gets in.
func TestAWriteOfADeposedLeaderIsRefused(t *testing.T) {
	hold := t.TempDir()
	servers := startThree(t, hold)
	if err := os.WriteFile(filepath.Join(hold, armFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const replicas = 5
	created := make(chan error, 1)
	creation := servers[0].client().AppsV1().ReplicaSets("default")
	go func() {
		_, err := creation.Create(t.Context(), replicaSet(replicas), metav1.CreateOptions{})
		created <- err
		close(created)
	}()
	defer func() {
		for range created { // until it has ended
		}
	}()

	// The controller may be faster than the answer to the creation: the server stops with that answer unsent then.
	var old *process
	until(t, time.Minute, "a leader that is stopped in the middle of a reconcile", func(context.Context) error {
		for _, p := range servers {
			if p.paused() {
				old = p
				return nil
			}
		}
		select {
		case err := <-created: // nil again and again once it was answered
			if err != nil {
				t.Fatal(err)
			}
		default:
		}
		return errors.New("none is")
	})
	term, err := os.ReadFile(filepath.Join(hold, heldFile))
	if err != nil {
		t.Fatal(err)
	}
	others := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == old })
	client := others[0].client()
	until(t, time.Minute, "the new leader's pods", func(ctx context.Context) error {
		return havePods(ctx, client, replicas)
	})
	before := podsOf(t, client)

	old.signal(syscall.SIGCONT)
	var answer []byte
	until(t, time.Minute, "the answer to the held write", func(context.Context) (err error) {
		answer, err = os.ReadFile(filepath.Join(hold, answerFile))
		if err == nil && len(answer) == 0 {
			err = errors.New("it is being written")
		}
		return err
	})
	t.Logf("%s, which led in term %s, was told: %q", old.order.Name, term, answer)
	if !strings.HasPrefix(string(answer), "409") || !strings.Contains(string(answer), string(storage.CauseLeaderTermOver)) {
		t.Errorf("the write of the deposed leader was answered with %q, want 409 with the cause %s", answer, storage.CauseLeaderTermOver)
	}
	until(t, time.Minute, "the old leader is ready again", old.ready)
	if n, err := old.metric(t.Context(), `barque_store_requests_total{outcome="fenced"}`); err != nil || n < 1 {
		t.Errorf("%s counts %v requests that were refused for their term (%v), want one at least", old.order.Name, n, err)
	}
	until(t, time.Minute, old.order.Name+" says that its controllers have stopped", func(context.Context) error {
		if !strings.Contains(old.log.String(), "leadership ended: the controllers have stopped") {
			return errors.New("it does not")
		}
		return nil
	})
	// A linearizable list, at the old leader: whatever it has sent is behind that.
	if after := podsOf(t, old.client()); !maps.Equal(before, after) {
		t.Errorf("the pods were %v, and are %v after the old leader went on", before, after)
	}
	t.Run("told to stop before it is ready", func(t *testing.T) { stopUnready(t, servers) })
}

// stopUnready ends all servers and starts one, which cannot become ready alone, and is told to stop.
func stopUnready(t *testing.T, servers []*process) {
	for _, p := range servers {
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
	lonely := servers[0].space.startProcess(t, servers[0].order)
	until(t, time.Minute, "an answer that it is not ready", func(ctx context.Context) error {
		if err := lonely.ready(ctx); !apierrors.IsInternalError(err) {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	lonely.signal(syscall.SIGTERM)
	select {
	case <-lonely.ended:
	case <-time.After(time.Minute):
		t.Fatal("it does not end within a minute")
	}
	if lonely.err != nil {
		t.Errorf("a server that was told to stop ended with %v", lonely.err)
	}
	if log := lonely.log.String(); !strings.Contains(log, "told to stop before it was ready") || strings.Contains(log, "level=ERROR") {
		t.Errorf("its log does not say so, or tells of errors:\n%s", log)
	}
}

func replicaSet(replicas int32) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "held"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "held"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "barque.local/hello:1"}}},
			},
		},
	}
}

func havePods(ctx context.Context, client kubernetes.Interface, want int) error {
	list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err == nil && len(list.Items) != want {
		err = fmt.Errorf("there are %d pods, want %d", len(list.Items), want)
	}
	return err
}

// podsOf returns the names of the pods that there are, by UID.
func podsOf(t *testing.T, client kubernetes.Interface) map[types.UID]string {
	t.Helper()
	list, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[types.UID]string{}
	for _, p := range list.Items {
		out[p.UID] = p.Name
	}
	return out
}

// metric reads a server's metrics and returns the value of the line that begins so.
func (p *process) metric(ctx context.Context, name string) (float64, error) {
	config, err := p.config()
	if err != nil {
		return 0, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	page, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", p.order.Name, name)
}
