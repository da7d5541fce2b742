package apiobjects

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/kubelet/volumes"
)

const (
	// answerPatience is how long a pod waits for a signer before it tries again later.
	answerPatience = 10 * time.Second
	// abandonAfter is for how long a request counts that the API server does not show.
	abandonAfter = 10 * time.Minute
	// lookAgain is the pause between looks at a request without an answer.
	lookAgain = time.Minute
	// overdueAfter is the delay after which a refresh is late.
	overdueAfter = 10 * time.Minute
	// spread bounds the random delay of a refresh, so that pods that were started together do not
	// refresh together.
	spread = 5 * time.Minute
	// refreshRetry is the pause between tries to ask for a refresh.
	refreshRetry = time.Minute
)

// CertificatesConfig configures RequestedCertificates.
type CertificatesConfig struct {
	Client   kubernetes.Interface
	NodeName string
	// Changed is called with a pod whose request was answered. It must not block.
	Changed func(uid types.UID)
	// Tell records an event of a pod.
	Tell   func(pod *v1.Pod, kind, reason, message string)
	Logger *slog.Logger
}

// RequestedCertificates gets certificates from signers by PodCertificateRequests. It makes the
// keys, which are in memory and in the pods' volumes only: after a restart of the kubelet all
// certificates are requested anew.
type RequestedCertificates struct {
	config   CertificatesConfig
	requests *demand

	mu   sync.Mutex
	kept map[certificateKey]*certificate
	news chan struct{} // closed and replaced when a request has changed
}

type certificateKey struct {
	uid    types.UID
	volume string
	index  int
}

// NewCertificates returns an empty store. Close ends it.
func NewCertificates(config CertificatesConfig) *RequestedCertificates {
	c := &RequestedCertificates{config: config, kept: map[certificateKey]*certificate{}, news: make(chan struct{})}
	if c.config.Logger == nil {
		c.config.Logger = slog.New(slog.DiscardHandler)
	}
	api := config.Client.CertificatesV1().PodCertificateRequests(metav1.NamespaceAll)
	own := fields.OneTermEqualSelector("spec.nodeName", config.NodeName).String()
	c.requests = newDemand(func() (cache.Store, cache.Controller) {
		return cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
					opts.FieldSelector = own
					return api.List(ctx, opts)
				},
				WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
					opts.FieldSelector = own
					return api.Watch(ctx, opts)
				},
			}, config.Client),
			ObjectType: &certificatesv1.PodCertificateRequest{},
			Handler:    cache.ResourceEventHandlerFuncs{AddFunc: c.tell, UpdateFunc: func(_, now any) { c.tell(now) }},
		})
	})
	return c
}

// Close ends the watch of the requests and waits for it.
func (c *RequestedCertificates) Close() { c.requests.close() }

func (c *RequestedCertificates) tell(obj any) {
	r, ok := obj.(*certificatesv1.PodCertificateRequest)
	if !ok || len(r.Status.Conditions) == 0 {
		return
	}
	c.mu.Lock()
	close(c.news)
	c.news = make(chan struct{})
	c.mu.Unlock()
	c.config.Changed(r.Spec.PodUID)
}

// Get implements Certificates. A certificate that cannot be refreshed stays in use; after a refusal
// there is no further request.
func (c *RequestedCertificates) Get(
	ctx context.Context, pod *v1.Pod, volume string, index int, source *v1.PodCertificateProjection,
) (key, chain []byte, again time.Time, err error) {
	known, err := c.requests.need(ctx, pod)
	if err != nil {
		return nil, nil, time.Time{}, err
	}
	have := c.of(certificateKey{pod.UID, volume, index})
	again = c.observe(pod, have, known)
	if have.toBeAsked(time.Now()) {
		switch err := c.ask(ctx, pod, source, have); {
		case err == nil:
			again = have.next()
		case have.issued == nil:
			return nil, nil, time.Time{}, err
		default:
			c.config.Logger.Warn("cannot ask for a new certificate of a pod; trying again",
				"pod", pod.Namespace+"/"+pod.Name, "volume", volume, "source", strconv.Itoa(index), "err", err)
			again = time.Now().Add(refreshRetry) // the step that was due is in the past
		}
	}
	if have.issued == nil && have.asked != nil {
		again = c.await(ctx, pod, have, known)
	}
	switch {
	case have.refusal != nil:
		return nil, nil, time.Time{}, have.refusal
	case have.issued == nil:
		return nil, nil, time.Time{}, volumes.ErrNotIssued
	}
	return have.issued.key, have.issued.chain, again, nil
}

// of returns the certificate under a key. It belongs to the pod's own goroutine.
func (c *RequestedCertificates) of(key certificateKey) *certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.kept[key]
	if have == nil {
		have = &certificate{}
		c.kept[key] = have
	}
	return have
}

// observe looks at a request and records events of its changes. It returns when to look again.
func (c *RequestedCertificates) observe(pod *v1.Pod, have *certificate, known *lister) time.Time {
	var found *certificatesv1.PodCertificateRequest
	if have.asked != nil {
		obj, _, err := known.GetByKey(pod.Namespace + "/" + have.asked.name)
		if err == nil {
			found, _ = obj.(*certificatesv1.PodCertificateRequest)
		}
	}
	for _, e := range have.observe(found, time.Now(), rand.N(spread)) {
		c.config.Tell(pod, v1.EventTypeWarning, e.reason, e.message)
	}
	return have.next()
}

// await waits until a first certificate is issued or refused, or until answerPatience is over.
func (c *RequestedCertificates) await(ctx context.Context, pod *v1.Pod, have *certificate, known *lister) time.Time {
	patience := time.NewTimer(time.Until(have.asked.at.Add(answerPatience)))
	defer patience.Stop()
	for {
		c.mu.Lock()
		news := c.news
		c.mu.Unlock()
		again := c.observe(pod, have, known)
		if have.issued != nil || have.refusal != nil || have.asked == nil {
			return again
		}
		select {
		case <-news:
		case <-patience.C:
			return again
		case <-ctx.Done():
			return again
		}
	}
}

// ask makes a key and requests its certificate from the signer.
func (c *RequestedCertificates) ask(
	ctx context.Context, pod *v1.Pod, source *v1.PodCertificateProjection, have *certificate,
) error {
	account, err := c.config.Client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName,
		metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look up the service account: %w", err)
	}
	node, err := c.config.Client.CoreV1().Nodes().Get(ctx, c.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look up this node: %w", err)
	}
	key, proof, err := generateKey(source.KeyType)
	if err != nil {
		return err
	}
	made, err := c.config.Client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx,
		&certificatesv1.PodCertificateRequest{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, GenerateName: "req-",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
			},
			Spec: certificatesv1.PodCertificateRequestSpec{
				SignerName: source.SignerName,
				PodName:    pod.Name, PodUID: pod.UID,
				ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
				NodeName: types.NodeName(node.Name), NodeUID: node.UID,
				MaxExpirationSeconds:      source.MaxExpirationSeconds,
				StubPKCS10Request:         proof,
				UnverifiedUserAnnotations: source.UserAnnotations,
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask signer %s for a certificate: %w", source.SignerName, err)
	}
	now := time.Now()
	have.asked = &certificateRequest{name: made.Name, key: key, at: now,
		abandonAt: now.Add(abandonAfter + rand.N(spread))}
	return nil
}

// Forget implements Certificates.
func (c *RequestedCertificates) Forget(uid types.UID) {
	c.mu.Lock()
	for key := range c.kept {
		if key.uid == uid {
			delete(c.kept, key)
		}
	}
	c.mu.Unlock()
	c.requests.forget(uid)
}
