package clustertest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/machines"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/internal/needs"
)

// The section about a disk and a store that are full, on one server.

const roomSection = "A disk or a store that is full"

// bulky is a ConfigMap of some bytes that no compression makes smaller.
func bulky(name string, bytes int) *corev1.ConfigMap {
	random := make([]byte, bytes/2)
	rand.Read(random) // never fails
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": fmt.Sprintf("%x", random)}}
}

// writeUntilRefused makes ConfigMaps big-1, big-2, … until one is refused. It leaves that one in
// big.yaml, and returns the number of ConfigMaps and kubectl's message.
func (d *drill) writeUntilRefused(m *machines.Machine, bytes, most int) (n int, said string) {
	d.Helper()
	configs := d.api(m).CoreV1().ConfigMaps("default")
	for ; n < most; n++ {
		next := bulky(fmt.Sprintf("big-%d", n+1), bytes)
		_, err := configs.Create(d.Context(), next, metav1.CreateOptions{})
		if err == nil {
			continue
		}
		manifest, failed := json.Marshal(next) // is YAML, too
		d.must(failed)
		d.must(os.WriteFile(m.Path(machines.Home+"/big.yaml"), manifest, 0o600))
		r := d.try(m, "barque kubectl create -f big.yaml")
		if r.Error != nil && !strings.Contains(r.Err, "(AlreadyExists)") {
			return n, r.Err
		}
		// the answer to that was lost, or it did not come to a write
		d.Logf("%s is there; at the first try: %v", next.Name, err)
	}
	d.Fatalf("%d objects of %d bytes were taken", n, bytes)
	return 0, ""
}

// warns waits until the status has a warning with all of these words, or, when there are none, no
// warning of a lack of room.
func (d *drill) warns(m *machines.Machine, words ...string) {
	d.Helper()
	Eventually(d, deadline, fmt.Sprintf("the status warns %q", words), func(context.Context) error {
		status, err := d.status(m)
		if err != nil {
			return err
		}
		short := false
		for _, w := range status.Warnings {
			if len(words) > 0 && contains(w.Text+"\n"+w.Mend, words...) {
				return nil
			}
			short = short || strings.Contains(w.Text, "full") || strings.Contains(w.Text, "fills up")
		}
		if len(words) == 0 && !short {
			return nil
		}
		return fmt.Errorf("its warnings are %+v", status.Warnings)
	})
}

func (d *drill) configMaps(m *machines.Machine) []corev1.ConfigMap {
	d.Helper()
	list, err := d.api(m).CoreV1().ConfigMaps("default").List(d.Context(), metav1.ListOptions{})
	if err != nil {
		d.Fatal(err)
	}
	return list.Items
}

// TestFullStore fills a store to its limit: a warning first, a clear refusal then; deleting makes
// room, and so does a higher limit.
func TestFullStore(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	s1 := d.machine("s1", "10.0.0.1", 0, "--no-node")
	d.start(s1, "barque server --store-memory-limit 16Mi")
	d.ready(s1)
	const limit, size = 16 << 20, 900 << 10
	d.writeUntil(s1, limit*88/100, size)
	p := d.procedure(roomSection)
	d.warns(s1, "the store fills up", "of 16Mi are taken", "--store-memory-limit")
	_, said := d.writeUntilRefused(s1, size, 32)
	if !contains(said, "the write was refused", "--store-memory-limit") {
		t.Errorf("kubectl says of a full store: %s", said)
	}
	d.warns(s1, "the store is full, so new objects are refused")
	if r := d.try(s1, p.words("barque cluster status")); r.Code != codeDegraded ||
		!contains(r.Out, "the store is full") {
		t.Errorf("status: code %d,\n%s%s", r.Code, r.Out, r.Err)
	}
	if have := len(d.configMaps(s1)); have < 10 {
		t.Errorf("%d objects can be read", have)
	}
	p.run(s1, "barque kubectl delete configmap big-1", "big-1", "fill-1 fill-2 fill-3")
	d.shell(s1, "barque kubectl create -f big.yaml")
	d.stop(s1)
	p.serve(s1, "barque server --store-memory-limit 4Gi", "4Gi", "64Mi")
	d.ready(s1)
	d.warns(s1)
	d.writeUntil(s1, 18<<20, size)
}

// writeUntil makes, or writes again, ConfigMaps fill-1, fill-2, … of together that many bytes.
func (d *drill) writeUntil(m *machines.Machine, total, size int) {
	d.Helper()
	configs := d.api(m).CoreV1().ConfigMaps("default")
	for n := 1; n*size <= total; n++ {
		next := bulky(fmt.Sprintf("fill-%d", n), size)
		Eventually(d, deadline, next.Name+" is written", func(ctx context.Context) error {
			_, err := configs.Create(ctx, next, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				_, err = configs.Update(ctx, next, metav1.UpdateOptions{})
			}
			return err
		})
	}
}

// TestFullDisk fills the disk of a server: first by the server's own writes, then by another
// process. The stored objects are served, deletions are taken and make room, and the server stops
// and starts in order.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	needs.NoError(t, store.DisksPossible(), "a server whose disk is full")
	d := newDrill(t)
	// a backup that failed is warned of until the next one
	s1 := d.machine("s1", "10.0.0.1", 64, "--no-node --snapshot-schedule 0")
	d.start(s1, "barque server")
	d.ready(s1)
	d.note(s1, "kept")
	n, said := d.writeUntilRefused(s1, 900<<10, 200)
	t.Logf("after %d objects: %s", n, strings.TrimSpace(said))
	d.diskIsFull(s1, said)
	Eventually(d, deadline, "all but one are deleted", func(ctx context.Context) error {
		return d.api(s1).CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "metadata.name!=kept"})
	})
	d.roomAgain(s1)

	ballast := s1.Path(machines.DataDir + "/ballast")
	d.must(fillDisk(ballast))
	n, said = d.writeUntilRefused(s1, 900<<10, 64)
	t.Logf("with the disk full of other things, after %d objects: %s", n, strings.TrimSpace(said))
	d.diskIsFull(s1, said)
	d.stop(s1)
	d.must(fillDisk(ballast))    // its reserve, too
	d.start(s1, "barque server") // in the room that its log has of its own
	d.ready(s1)
	d.noted(s1, "kept")
	d.warns(s1, "the disk of server s1 is full")
	d.must(os.Remove(ballast))
	d.roomAgain(s1)
}

// diskIsFull checks the behaviour of a server whose disk is full, by the page.
func (d *drill) diskIsFull(m *machines.Machine, said string) {
	d.Helper()
	if !contains(said, "the write was refused", "the disk of this server is full", "make room on the volume") {
		d.Errorf("kubectl says of a full disk: %s", said)
	}
	d.warns(m, "the disk of server s1 is full and it runs on its reserve",
		"make room on the volume of its data directory")
	d.ready(m)
	d.noted(m, "kept")
	d.procedure(roomSection).run(m, "barque kubectl delete configmap big-1")
}

// roomAgain waits until the server takes writes and warns of nothing.
func (d *drill) roomAgain(m *machines.Machine) {
	d.Helper()
	d.warns(m)
	d.shell(m, "barque kubectl create configmap room && barque kubectl delete configmap room")
}

// fillDisk leaves no byte free on the disk of a file.
func fillDisk(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for size := len(zeros); size > 0 && err == nil; {
		if _, err = f.Write(zeros[:size]); errors.Is(err, unix.ENOSPC) {
			size, err = size/2, nil
		}
	}
	return errors.Join(err, f.Close())
}
