package apiserver

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
)

// cutOff is a store that fails with its reason, if there is one.
type cutOff struct {
	storage.Backend
	why     atomic.Pointer[error]
	elected chan struct{} // closed when errElecting is over
}

// errElecting makes reads wait for as long as they want to.
var errElecting = fmt.Errorf("%w: an election is under way", raftstore.ErrUnavailable)

func (c *cutOff) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	if why := c.why.Load(); why != nil && !opts.Stale {
		if errors.Is(*why, errElecting) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-c.elected:
				return c.Backend.View(ctx, opts)
			}
		}
		return nil, *why
	}
	return c.Backend.View(ctx, opts)
}

func (c *cutOff) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	if why := c.why.Load(); why != nil {
		return raftstore.Result{}, *why
	}
	return c.Backend.Commit(ctx, txn)
}

// TestAServerThatIsStartedWithoutALeader: it has neither roles nor the objects that admission uses,
// and accepts no writes. It reports the reason, at once, and a refusal for lack of roles has the
// same reason. With a leader it is like any other.
func TestAServerThatIsStartedWithoutALeader(t *testing.T) {
	store := &cutOff{elected: make(chan struct{})}
	cut := func(err error) { store.why.Store(&err) }
	cut(&raftstore.LeaderlessError{For: time.Minute, Reason: "no leader has been known for 1m0s"})
	c := startUnready(t, func(cfg *Config) {
		store.Backend = cfg.Store
		cfg.Store = store
	})
	configs := func(client kubernetes.Interface) error {
		_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
		return err
	}
	if _, err := c.admin.Discovery().ServerVersion(); err != nil { // it serves, which may take a moment
		t.Fatal(err)
	}
	err := configs(c.admin) // admission would wait for ten seconds, and forbid it
	if !apierrors.IsServiceUnavailable(err) || !apierrors.HasStatusCause(err, storeerror.CauseNoLeader) ||
		!strings.Contains(err.Error(), "no leader has been known for 1m0s") {
		t.Errorf("a write: %v", err)
	}
	someone := kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, pkix.Name{CommonName: "someone"}))
	if err := configs(someone); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "has not read the roles yet") {
		t.Errorf("a write of a user who may have a role: %v", err)
	}
	review := &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}}}
	if answer, err := c.admin.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review,
		metav1.CreateOptions{}); err != nil || !answer.Status.Allowed {
		t.Errorf("a review, which is not stored: %v", err)
	}

	cut(errElecting)
	result := c.admin.CoreV1().RESTClient().Post().Namespace(metav1.NamespaceDefault).Resource("configmaps").MaxRetries(
		0).
		Body(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}).Do(t.Context())
	var code int
	result.StatusCode(&code)
	if seconds, ok := apierrors.SuggestsClientDelay(result.Error()); code != http.StatusServiceUnavailable || !ok ||
		seconds != 1 {
		t.Errorf("a write in an election: %d, %v", code, result.Error())
	}

	store.why.Store(nil)
	close(store.elected)
	c.awaitReady(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	if err := configs(c.admin); err != nil {
		t.Errorf("with a leader: %v", err)
	}
	if err := configs(someone); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "has not read") {
		t.Errorf("with a leader, who has no role: %v", err)
	}
	// Once it is synced it reads the store once for a write, and no more.
	cut(raftstore.ErrDiskFull)
	if err := configs(c.admin); apierrors.ReasonForError(err) != storeerror.StatusReasonInsufficientStorage {
		t.Errorf("synced, and the disk is full: %v", err)
	}
}
