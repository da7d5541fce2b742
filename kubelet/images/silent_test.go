package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestASilentNodeIsGivenUp: a node that takes no bytes is waited for, with one report, and then
// given up. A node that has the whole tar may take its time while it is Ready.
func TestASilentNodeIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		ready corev1.ConditionStatus
		reads int // one each 20 seconds
		whole bool
		want  string // "" is never given up
		told  int
	}{
		"it takes nothing":                {corev1.ConditionTrue, 0, false, "has taken nothing for 1m0s", 1},
		"it takes nothing more":           {corev1.ConditionTrue, 3, false, "has taken nothing for 1m0s", 1},
		"it imports for long":             {corev1.ConditionTrue, 3, true, "", 1},
		"it goes away while it imports":   {corev1.ConditionUnknown, 3, true, "the kubelet is silent", 1},
		"it goes away while it is copied": {corev1.ConditionUnknown, 1, false, "the kubelet is silent", 1},
		"it takes a little all the time":  {corev1.ConditionTrue, 30, true, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a1"}}
				node.Status.Conditions = []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: c.ready, Message: "the kubelet is silent"}}
				client := fake.NewClientset(node).CoreV1()
				bytes := io.Reader(strings.NewReader(strings.Repeat("x", c.reads)))
				if !c.whole {
					bytes = io.MultiReader(bytes, strings.NewReader("and more"))
				}
				m := &moving{Reader: bytes, moves: make(chan bool, 1)}
				ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute+50*time.Second)
				defer cancel()
				told, ended := 0, make(chan error, 1)
				go func() { ended <- m.watch(ctx, client, "a1", func() { told++ }) }()
				one := make([]byte, 1)
				for range c.reads {
					<-time.After(20 * time.Second)
					_, _ = m.Read(one)
				}
				if c.whole {
					_, _ = m.Read(one)
				}
				err := <-ended
				if c.want == "" && err != nil ||
					c.want != "" && (!errors.Is(err, errSilent) || !strings.Contains(err.Error(), c.want)) ||
					told != c.told {
					t.Errorf("%v, told %d times; want %q, told %d times", err, told, c.want, c.told)
				}
			})
		})
	}
}

// TestSaid: the message in an answer reaches the user, whatever server has answered.
func TestSaid(t *testing.T) {
	bad := func(message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 502, Message: message}}
	}
	for want, err := range map[string]error{
		"the answer has status 502: dial tcp 10.0.0.9: no route to host": said(bad("unknown"),
			[]byte("dial tcp 10.0.0.9: no route to host\n")),
		"unknown":    said(bad("unknown"), nil),
		"it is full": said(bad("it is full"), []byte("{}")),
	} {
		if err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestLooksLikeArchive(t *testing.T) {
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "index.json", Typeflag: tar.TypeReg, Size: 2}),
		func() error { _, err := w.Write([]byte("{}")); return err }(), w.Close()); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); errors.Join(err, z.Close()) != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data  string
		looks bool
	}{
		"tar": {plain.String(), true}, "gzip": {packed.String(), true}, "zstd": {string(zstdMagic) + "x", true},
		"empty": {"", false}, "text": {strings.Repeat("no tar\n", 200), false},
		"gzip of text": {"\x1f\x8b\x08\x00", false}, "short": {"x", false},
	} {
		if err := LooksLikeArchive(strings.NewReader(c.data)); (err == nil) != c.looks {
			t.Errorf("%s: %v", name, err)
		}
	}
}
