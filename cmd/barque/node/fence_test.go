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
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/storeerror"
)

// The leader's process is stopped in the middle of a reconcile: the controller of ReplicaSets has
// decided to create a pod and has not sent it. The others elect a leader, which creates the pods.
// When the old one continues, its write arrives, and is refused for its term: no write of the
// deposed leader takes effect.
func TestAWriteOfADeposedLeaderIsRefused(t *testing.T) {
	hold := t.TempDir()
	servers := startThree(t, hold)
	if err := os.WriteFile(filepath.Join(hold, armFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const replicas = 5
	refused, ended := make(chan error, 1), make(chan struct{})
	creation := servers[0].client().AppsV1().ReplicaSets("default")
	creating, enough := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		refused <- create(creating, creation, replicaSet(replicas))
	}()
	defer func() { enough(); <-ended }()

	// The controller may be faster than the answer to the creation: the server stops with that
	// answer unsent then.
	var old *process
	until(t, patience, "a leader that is stopped in the middle of a reconcile", func(context.Context) error {
		for _, p := range servers {
			if p.paused() {
				old = p
				return nil
			}
		}
		select {
		case err := <-refused:
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
	until(t, patience, "the new leader's pods", func(ctx context.Context) error {
		return havePods(ctx, client, replicas)
	})
	before := podsOf(t, client)

	old.signal(syscall.SIGCONT)
	var answer []byte
	until(t, patience, "the answer to the held write", func(context.Context) (err error) {
		answer, err = os.ReadFile(filepath.Join(hold, answerFile))
		if err == nil && len(answer) == 0 {
			err = errors.New("it is being written")
		}
		return err
	})
	t.Logf("%s, which led in term %s, was told: %q", old.order.Name, term, answer)
	if !strings.HasPrefix(string(answer), "409") ||
		!strings.Contains(string(answer), string(storeerror.CauseLeaderTermOver)) {
		t.Errorf("the write of the deposed leader was answered with %q, want 409 with the cause %s", answer,
			storeerror.CauseLeaderTermOver)
	}
	until(t, patience, "the old leader is ready again", old.ready)
	until(t, patience, old.order.Name+" counts a request that was refused for its term",
		func(ctx context.Context) error {
			n, err := old.metric(ctx, `barque_store_requests_total{outcome="fenced"}`)
			if err == nil && n < 1 {
				err = fmt.Errorf("it counts %v", n)
			}
			return err
		})
	until(t, patience, old.order.Name+" says that its controllers have stopped", func(context.Context) error {
		if !strings.Contains(old.log.String(), "leadership ended: the controllers have stopped") {
			return errors.New("it does not")
		}
		return nil
	})
	// A linearizable list, at the old leader, comes after all of its writes.
	if after := podsOf(t, old.client()); !maps.Equal(before, after) {
		t.Errorf("the pods were %v, and are %v after the old leader went on", before, after)
	}
	t.Run("told to stop before it is ready", func(t *testing.T) { stopUnready(t, servers) })
}

// create creates it, again when a leader was lost over that: then it may be there or not.
func create(ctx context.Context, client appsclient.ReplicaSetInterface, wanted *appsv1.ReplicaSet) error {
	for {
		_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
			return nil
		case !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err):
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond): // brief: the interval of a poll
		case <-ctx.Done():
			return err
		}
	}
}

// stopUnready ends all servers and starts one, which cannot become ready alone, and stops it.
func stopUnready(t *testing.T, servers []*process) {
	for _, p := range servers {
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
	lonely := servers[0].space.startProcess(t, servers[0].order)
	until(t, patience, "an answer that it is not ready", func(ctx context.Context) error {
		if err := lonely.ready(ctx); !apierrors.IsInternalError(err) {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	lonely.signal(syscall.SIGTERM)
	select {
	case <-lonely.ended:
	case <-time.After(patience):
		t.Fatalf("it does not end within %v", patience)
	}
	if lonely.err != nil {
		t.Errorf("a server that was told to stop ended with %v", lonely.err)
	}
	log := lonely.log.String()
	if !strings.Contains(log, "told to stop before it was ready") {
		t.Errorf("its log does not say so:\n%s", log)
	}
	for line := range strings.Lines(log) { // on a machine that was busy for ten seconds it has missed its store
		if strings.Contains(line, "level=ERROR") && !strings.Contains(line, storeerror.Unreadable) {
			t.Errorf("its log tells of an error: %s", line)
		}
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

// podsOf returns the names of the existing pods, by UID.
func podsOf(t *testing.T, client kubernetes.Interface) map[types.UID]string {
	t.Helper()
	var list *corev1.PodList
	until(t, patience, "the pods", func(ctx context.Context) (err error) {
		list, err = client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err
	})
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
