package localvolumes

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/internal/localpv"
)

// living is a bound volume on node n, with a record of its directory.
func living(name, directory string) *v1.PersistentVolume {
	return deleted("n", func(v *v1.PersistentVolume) {
		v.Name, v.DeletionTimestamp, v.Status.Phase = name, nil, v1.VolumeBound
		v.Spec.Local.Path = "/v/" + name
		if directory != "" {
			v.Annotations[localpv.DirectoryAnnotation] = directory
		}
	})
}

func recorded(t *testing.T, client *fake.Clientset, name string) string {
	t.Helper()
	pv, err := client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pv.Annotations[localpv.DirectoryAnnotation]
}

// absent reports that a directory is not there.
func absent() (bool, error) { return false, nil }

func TestRecord(t *testing.T) {
	client := fake.NewClientset(living("new", ""), living("was", localpv.Made), living("lost", localpv.Lost),
		living("other", localpv.Made))
	r := NewRecord(client, slog.New(slog.DiscardHandler))
	if err := r.MayMake(t.Context(), living("new", ""), absent); err != nil {
		t.Errorf("a volume that was never made: %v", err)
	}
	// Another pod has made the directory since the caller looked.
	if err := r.MayMake(t.Context(), living("other", ""), func() (bool, error) { return true, nil }); err != nil ||
		recorded(t, client, "other") != localpv.Made {
		t.Errorf("made meanwhile: %v, recorded as %q", err, recorded(t, client, "other"))
	}
	// The caller's copy of the volume may be older than the record.
	for _, name := range []string{"was", "lost"} {
		err := r.MayMake(t.Context(), living(name, ""), absent)
		if lost := (*LostError)(nil); !errors.As(err, &lost) ||
			!strings.Contains(err.Error(), "/v/"+name+" was made before") ||
			!strings.Contains(err.Error(), localpv.DeclareLost(name)) {
			t.Errorf("%s: %v", name, err)
		}
		if is := recorded(t, client, name); is != localpv.Lost {
			t.Errorf("%s is recorded as %q", name, is)
		}
	}
	// A person has declared it lost, and a caller with an older copy of the volume makes it anew.
	declared := living("lost", "")
	if _, err := client.CoreV1().PersistentVolumes().Update(t.Context(), declared, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.MayMake(t.Context(), living("lost", localpv.Lost), absent),
		r.Made(t.Context(), living("lost", localpv.Lost))); err != nil {
		t.Errorf("declared lost: %v", err)
	}
	if is := recorded(t, client, "lost"); is != localpv.Made {
		t.Errorf("the new directory is recorded as %q", is)
	}
}

// TestARecordThatFails: a pod waits for it, but not for the upgrade of the servers.
func TestARecordThatFails(t *testing.T) {
	client := fake.NewClientset(living("new", ""))
	refusal := errors.New("the store is full")
	client.PrependReactor("update", "persistentvolumes",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
	r := NewRecord(client, slog.New(slog.DiscardHandler))
	if err := r.Made(t.Context(), living("new", "")); !errors.Is(err, refusal) {
		t.Errorf("a failure: %v", err)
	}
	refusal = apierrors.NewForbidden(v1.Resource("persistentvolumes"), "new", errors.New("only the finalizer"))
	if err := r.Made(t.Context(), living("new", "")); err != nil {
		t.Errorf("an earlier server: %v", err)
	}
}

// TestTheAgentRecords: directories that are there at the start, of an earlier version too, and
// directories that are gone.
func TestTheAgentRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(living("earlier", ""), living("unused", ""), living("fine", localpv.Made),
			living("gone", localpv.Made), living("back", localpv.Lost),
			living("away", localpv.Lost),
			deleted("m", func(v *v1.PersistentVolume) { v.Name, v.DeletionTimestamp = "others", nil }))
		dirs := &directories{there: map[string]bool{"earlier": true, "fine": true, "back": true, "others": true}}
		a := New(
			Config{NodeName: "n", Client: client, Directories: dirs, Logger: slog.New(slog.DiscardHandler),
				InUse: func(string) (bool, error) { return true, nil }})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error)
		go func() { done <- a.Run(ctx) }() // ends with ctx
		synctest.Wait()
		for name, want := range map[string]string{"earlier": localpv.Made, "unused": "", "fine": localpv.Made,
			"gone": localpv.Lost, "back": localpv.Made, "away": localpv.Lost, "others": ""} {
			if is := recorded(t, client, name); is != want {
				t.Errorf("%s is recorded as %q, want %q", name, is, want)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
