package apiobjects

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/kubelet/volumes"
)

// pemOf returns fake certificates that differ.
func pemOf(names ...string) string {
	var out bytes.Buffer
	for _, n := range names {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(n)}))
	}
	return out.String()
}

// namesIn returns the names of the fake certificates in data, in order.
func namesIn(data []byte) string {
	var names []string
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		names = append(names, string(block.Bytes))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func trustBundle(name, signer string, labels map[string]string, anchors ...string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: "a comment\n" + pemOf(anchors...)}}
}

// heard collects the pods that were woken.
type heard struct {
	mu   sync.Mutex
	pods []types.UID
}

func (h *heard) tell(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pods = append(h.pods, uid)
}

// take returns the pods that were woken since the last time, each one once.
func (h *heard) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.pods)
	told := fmt.Sprint(slices.Compact(h.pods))
	h.pods = nil
	return told
}

func podOf(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-" + string(uid), UID: uid}}
}

// TestTrustBundles: pods get the anchors of the bundles that they refer to, each one once, in a
// stable order. They are woken by changes of these and no others.
func TestTrustBundles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const signer = "example.com/s"
		client := fake.NewClientset(
			trustBundle("plain", "", nil, "a", "b", "a"),
			trustBundle("example.com:s:1", signer, map[string]string{"live": "yes"}, "c", "d"),
			trustBundle("example.com:s:2", signer, map[string]string{"live": "yes"}, "d", "e"),
			trustBundle("example.com:s:3", signer, nil, "f"),
			trustBundle("example.com:t:1", "example.com/t", map[string]string{"live": "yes"}, "g"),
		)
		var told heard
		b := NewTrustBundles(client, told.tell)
		defer b.Close()
		one, all, none := podOf("one"), podOf("all"), podOf("none")
		if got, err := b.Named(t.Context(), one, "plain"); err != nil || namesIn(got) != "a b" {
			t.Errorf("by name: %q, %v", got, err)
		}
		if _, err := b.Named(t.Context(), none, "gone"); !volumes.IsNotFound(err) {
			t.Errorf("one that is not there: %v", err)
		}
		for _, c := range []struct {
			selector *metav1.LabelSelector
			want     string
		}{
			{nil, ""},
			{&metav1.LabelSelector{}, "c d e f"},
			{&metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}, "c d e"},
			{&metav1.LabelSelector{MatchLabels: map[string]string{"live": "no"}}, ""},
		} {
			got, err := b.Signed(t.Context(), all, signer, c.selector)
			if namesIn(got) != c.want || (c.want == "") != errors.Is(err, volumes.ErrNoBundle) {
				t.Errorf("selected by %v: %q, %v", c.selector, namesIn(got), err)
			}
		}
		for _, bad := range []*metav1.LabelSelector{
			{MatchLabels: map[string]string{"long": strings.Repeat("x", longestSelector)}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}},
		} {
			if _, err := b.Signed(t.Context(), all, signer, bad); err == nil || errors.Is(err, volumes.ErrNoBundle) {
				t.Errorf("a bad selector: %v", err)
			}
		}
		first, err := b.Signed(t.Context(), all, signer, &metav1.LabelSelector{})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if again, _ := b.Signed(t.Context(), all, signer, &metav1.LabelSelector{}); !bytes.Equal(first, again) {
				t.Fatal("the order changes although no bundle has")
			}
		}
		synctest.Wait()
		told.take()
		api := client.CertificatesV1().ClusterTrustBundles()
		update := func(bundle *certificatesv1.ClusterTrustBundle) {
			t.Helper()
			if _, err := api.Update(t.Context(), bundle, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		update(trustBundle("plain", "", nil, "z"))
		if got := told.take(); got != "[one]" {
			t.Errorf("told of a change: %s", got)
		}
		if got, _ := b.Named(t.Context(), one, "plain"); namesIn(got) != "z" {
			t.Errorf("after a change: %q", got)
		}
		update(trustBundle("example.com:s:3", signer, nil, "h"))
		if got := told.take(); got != "[all]" {
			t.Errorf("told of a signer's change: %s", got)
		}
		update(trustBundle("example.com:t:1", "example.com/t", nil, "i"))
		if got := told.take(); got != "[]" {
			t.Errorf("told of what nobody refers to: %s", got)
		}
		if _, err := api.Create(t.Context(), trustBundle("gone", "", nil, "j"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := told.take(); got != "[none]" {
			t.Errorf("told of one that has come: %s", got)
		}
		if err := api.Delete(t.Context(), "example.com:s:1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := told.take(); got != "[all]" {
			t.Errorf("told of one that has gone: %s", got)
		}
		b.Forget("one")
		b.Forget("all")
		b.Forget("none")
		b.mu.Lock()
		if b.live != nil || len(b.asked) > 0 {
			t.Error("bundles are watched for nobody")
		}
		b.mu.Unlock()
		if got, err := b.Named(t.Context(), one, "gone"); err != nil || namesIn(got) != "j" {
			t.Errorf("after all were forgotten: %q, %v", got, err)
		}
	})
}

// TestTheOrderOfAnchorsIsNobodysToRelyOn: two kubelets show the same anchors in different orders.
func TestTheOrderOfAnchorsIsNobodysToRelyOn(t *testing.T) {
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprint(i))
	}
	bundle := trustBundle("b", "", nil, names...)
	a, b := NewTrustBundles(fake.NewClientset(), nil), NewTrustBundles(fake.NewClientset(), nil)
	if x, y := a.anchors(bundle), b.anchors(bundle); bytes.Equal(x, y) || namesIn(x) != namesIn(y) ||
		len(x) != len(pemOf(names...)) {
		t.Errorf("%d and %d bytes, the same: %v", len(x), len(y), bytes.Equal(x, y))
	}
}
