package bootstrap

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/apiserver/services"
)

// TestEventsOfServiceCIDRsAtAStop: findings at the end of a term are written, though the term ends
// at once. Other events may wait before them.
func TestEventsOfServiceCIDRsAtAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lead, depose := context.WithCancel(t.Context())
		client := fake.NewClientset(&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: services.DefaultCIDR, UID: "0"},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
		})
		recorder, stop := newRecorder(lead, client)
		const others = 20
		for i := range others {
			about := &networkingv1.IPAddress{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("10.43.0.", i), UID: types.UID(fmt.Sprint(i))}}
			recorder.Event(about, "Warning", "IPAddressNotAllocated", "it was lost")
		}
		cidr := &defaultCIDR{
			cidrs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}, client: client, recorder: recorder,
			logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}
		if err := cidr.ensure(lead); err != nil {
			t.Fatal(err)
		}
		depose()
		stop()
		list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != others+1 {
			t.Errorf("%d events are written, want %d: %v", len(list.Items), others+1, err)
		}
	})
}
