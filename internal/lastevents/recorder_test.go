package lastevents_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/lastevents"
)

var aPod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "1"}}

// An event is written beside what it is about, and counted when it happens again.
func TestRecorder(t *testing.T) {
	client := fake.NewClientset()
	recorder, stop := lastevents.Recorder(t.Context(), client, "tester")
	defer stop()
	for range 3 {
		recorder.Event(aPod, corev1.EventTypeNormal, "Seen", "it was seen")
	}
	recorder.Event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "2"}}, corev1.EventTypeWarning, "Lost",
		"it was lost")
	await.NoError(t, "the events", func(ctx context.Context) error { return written(ctx, client) })
}

func written(ctx context.Context, client kubernetes.Interface) error {
	ofPod, err := client.CoreV1().Events("shop").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ofNode, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(ofPod.Items) != 1 || ofPod.Items[0].Count != 3 || ofPod.Items[0].Source.Component != "tester" ||
		len(ofNode.Items) != 1 {
		return errors.New("the events are not there: " + ofPod.String() + ofNode.String())
	}
	return nil
}

// Events that wait when the server stops are written: it still leads then.
func TestRecorderWritesTheLastEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lead, depose := context.WithCancel(t.Context())
		client := fake.NewClientset()
		recorder, stop := lastevents.Recorder(lead, client, "tester")
		const count = 50
		for i := range count {
			pod := aPod.DeepCopy()
			pod.Name, pod.UID = fmt.Sprint("till", i), types.UID(fmt.Sprint(i))
			recorder.Event(pod, corev1.EventTypeNormal, "Seen", "it was seen")
		}
		depose()
		stop()
		list, err := client.CoreV1().Events("shop").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != count {
			t.Errorf("%d events are written, want %d: %v", len(list.Items), count, err)
		}
	})
}

// An event that is refused for now is tried again, and given up with its term.
func TestRecorderEndsWithItsTerm(t *testing.T) {
	lead, depose := context.WithCancel(t.Context())
	defer depose()
	asked, ended := make(chan struct{}), make(chan struct{})
	var tries atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// unread, its end is not seen
		if _, err := io.ReadAll(r.Body); err != nil || !strings.HasSuffix(r.URL.Path, "/namespaces/shop/events") {
			return
		}
		if tries.Add(1) == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		close(asked)
		<-r.Context().Done()
		close(ended)
	}))
	defer api.Close()
	defer api.CloseClientConnections()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	recorder, stop := lastevents.Recorder(lead, client, "tester")
	defer stop()
	recorder.Event(aPod, corev1.EventTypeNormal, "Seen", "it was seen")
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatal("it was not tried again")
	}
	depose()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it goes on after the end of its term")
	}
}
