package quota

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	configvalidation "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/lru"
)

// patience is how long a request waits for its charge.
const patience = 10 * time.Second

// Quota charges the usage of a request to the quotas of its namespace, and refuses a request that
// exceeds them.
type Quota struct {
	*admission.Handler
	client     kubernetes.Interface
	quotas     listers.ResourceQuotaLister
	synced     func() bool
	devices    *Devices
	ignored    map[schema.GroupResource]struct{}
	evaluators quotav1.Registry
	limited    []resourcequotaapi.LimitedResource

	// written are the newest versions of quotas that this server has written or read past the
	// lister.
	written *lru.Cache

	mu    sync.Mutex
	desks map[string]*desk // by namespace
}

// desk is the queue of requests of a namespace. One goroutine charges all that wait at once, with
// one write for each quota; it ends when the queue is empty.
type desk struct{ waiting []*charge }

// charge is a request on its way through the quotas.
type charge struct {
	a       admission.Attributes
	checker quotav1.Evaluator
	done    chan struct{} // closed when err is final

	ended   bool
	err     error
	refused error                          // the final error, when the paid charges are given back
	paid    map[string]corev1.ResourceList // by UID of the quota
	owed    map[string]corev1.ResourceList // to pay in this round; when refused, to give back
}

func (c *charge) end(err error) { c.ended, c.err = true, err }

var _ admission.ValidationInterface = (*Quota)(nil)

// New returns the step. config is a ResourceQuotaConfiguration, which names the resources that
// cannot be used without a quota; nil means that there are none. devices may be nil where there are
// no DeviceClasses.
func New(
	config io.Reader, factory informers.SharedInformerFactory, devices *Devices, client kubernetes.Interface,
) (*Quota, error) {
	configuration, err := resourcequota.LoadConfiguration(config)
	if err != nil {
		return nil, err
	}
	if errs := configvalidation.ValidateConfiguration(configuration); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	known := factory.Core().V1().ResourceQuotas()
	return &Quota{
		Handler: admission.NewHandler(admission.Create, admission.Update),
		client:  client, quotas: known.Lister(), synced: known.Informer().HasSynced, devices: devices,
		ignored: Ignored(), evaluators: generic.NewRegistry(Evaluators(nil, devices, time.Now)),
		limited: configuration.LimitedResources,
		written: lru.New(1000), desks: map[string]*desk{},
	}, nil
}

// Validate implements admission.ValidationInterface.
func (q *Quota) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if _, ignored := q.ignored[resource]; ignored || a.GetNamespace() == "" ||
		resource == corev1.Resource("namespaces") {
		return nil
	}
	checker := q.evaluators.Get(resource)
	if checker == nil {
		checker = generic.NewObjectCountEvaluator(resource, nil, "")
	}
	if !checker.Handles(a) {
		return nil
	}
	if quotas, err := q.known(ctx, a.GetNamespace()); err != nil || len(quotas) == 0 && len(q.limited) == 0 {
		return err
	}
	if resource == deviceClaims.GroupResource() {
		if err := q.devices.await(ctx); err != nil {
			return err
		}
	}
	c := &charge{a: a, checker: checker, done: make(chan struct{}), paid: map[string]corev1.ResourceList{}}
	q.queue(c)
	patient := time.NewTimer(patience)
	defer patient.Stop()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patient.C:
		return apierrors.NewInternalError(fmt.Errorf("resource quota evaluation timed out"))
	}
}

func (q *Quota) queue(c *charge) {
	q.mu.Lock()
	defer q.mu.Unlock()
	namespace := c.a.GetNamespace()
	d := q.desks[namespace]
	if d == nil {
		d = &desk{}
		q.desks[namespace] = d
		go q.serve(namespace, d) // it ends when the queue is empty
	}
	d.waiting = append(d.waiting, c)
}

func (q *Quota) serve(namespace string, d *desk) {
	for {
		q.mu.Lock()
		waiting := d.waiting
		d.waiting = nil
		if len(waiting) == 0 {
			delete(q.desks, namespace)
		}
		q.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		// The requests may give up one by one: those that have been charged together end together.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		q.charge(ctx, namespace, waiting)
		cancel()
		for _, c := range waiting {
			close(c.done)
		}
	}
}

// charge ends all charges of a namespace.
func (q *Quota) charge(ctx context.Context, namespace string, charges []*charge) {
	for {
		open := slices.DeleteFunc(slices.Clone(charges), func(c *charge) bool { return c.ended })
		if len(open) == 0 {
			return
		}
		quotas, err := q.known(ctx, namespace)
		if err == nil {
			err = q.round(ctx, quotas, open)
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			for _, c := range open {
				if !c.ended {
					c.end(cmp.Or(c.refused, err))
				}
			}
		}
	}
}

// round decides every open charge upon one snapshot of the quotas, and writes the new sums. A
// charge is open for another round when a quota that it owes to has changed meanwhile.
func (q *Quota) round(ctx context.Context, quotas []corev1.ResourceQuota, open []*charge) error {
	used := make([]corev1.ResourceList, len(quotas))
	for i := range quotas {
		used[i] = quotas[i].Status.Used
	}
	for _, c := range open {
		q.decide(c, quotas, used)
	}
	for i := range quotas {
		// With the same sum as before, one charge gives back the amount that another one pays.
		if !quotav1.Equals(used[i], quotas[i].Status.Used) {
			changed := quotas[i].DeepCopy()
			changed.Status.Used = used[i]
			err := q.write(ctx, changed)
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				if err = q.refresh(ctx, changed); err == nil {
					continue
				}
			}
			if err != nil {
				return err
			}
		}
		for _, c := range open {
			c.settle(string(quotas[i].UID))
		}
	}
	for _, c := range open {
		if !c.ended && len(c.owed) == 0 {
			c.end(c.refused)
		}
	}
	return nil
}

// settle notes that a quota has been written as this round wants it.
func (c *charge) settle(uid string) {
	owed, ok := c.owed[uid]
	switch {
	case !ok:
		return
	case c.refused != nil:
		delete(c.paid, uid)
	default:
		c.paid[uid] = owed
	}
	delete(c.owed, uid)
}

// decide checks the quotas without the amount that the charge has paid already, so that a second
// check comes to the same sum. It sets used to the sums to be written.
func (q *Quota) decide(c *charge, quotas []corev1.ResourceQuota, used []corev1.ResourceList) {
	without := make([]corev1.ResourceQuota, len(quotas))
	for i := range quotas {
		without[i] = *quotas[i].DeepCopy()
		without[i].Status.Used = quotav1.SubtractWithNonNegativeResult(used[i], c.paid[string(quotas[i].UID)])
	}
	var with []corev1.ResourceQuota
	if c.refused == nil { // a refused charge stays refused
		with, c.refused = resourcequota.CheckRequest(without, c.a, c.checker, q.limited)
	}
	c.owed = map[string]corev1.ResourceList{}
	for i := range quotas {
		uid := string(quotas[i].UID)
		switch {
		case c.refused != nil:
			if c.paid[uid] != nil {
				c.owed[uid], used[i] = c.paid[uid], without[i].Status.Used
			}
		case c.a.IsDryRun():
		case !quotav1.Equals(with[i].Status.Used, without[i].Status.Used):
			if !quotav1.Equals(with[i].Status.Used, used[i]) {
				c.owed[uid] = quotav1.Subtract(with[i].Status.Used, without[i].Status.Used)
			}
			used[i] = with[i].Status.Used
		}
	}
	if len(c.owed) == 0 {
		c.end(c.refused)
	}
}

// known returns the quotas of a namespace, each as new as this server knows it.
func (q *Quota) known(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	if !q.synced() {
		list, err := q.client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("error resolving quota: %w", err)
		}
		return list.Items, nil
	}
	listed, err := q.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("error resolving quota: %w", err)
	}
	var quotas []corev1.ResourceQuota
	for _, l := range listed {
		newest := l
		if w, ok := q.written.Get(l.UID); ok {
			written, _ := w.(*corev1.ResourceQuota)
			if written == nil {
				continue // it is gone, and the lister does not know yet
			}
			if (storage.APIObjectVersioner{}).CompareResourceVersion(written, l) > 0 {
				newest = written
			}
		}
		quotas = append(quotas, *newest)
	}
	slices.SortFunc(quotas, func(a, b corev1.ResourceQuota) int { return strings.Compare(a.Name, b.Name) })
	return quotas, nil
}

func (q *Quota) write(ctx context.Context, changed *corev1.ResourceQuota) error {
	written, err := q.client.CoreV1().ResourceQuotas(changed.Namespace).UpdateStatus(ctx, changed,
		metav1.UpdateOptions{})
	if err == nil {
		q.written.Add(changed.UID, written)
	}
	return err
}

// refresh reads a quota that another server has written.
func (q *Quota) refresh(ctx context.Context, changed *corev1.ResourceQuota) error {
	is, err := q.client.CoreV1().ResourceQuotas(changed.Namespace).Get(ctx, changed.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && is.UID != changed.UID:
		q.written.Add(changed.UID, (*corev1.ResourceQuota)(nil))
	case err != nil:
		return err
	default:
		q.written.Add(is.UID, is)
	}
	return nil
}
