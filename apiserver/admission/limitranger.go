package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/lru"
)

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

var claims = schema.GroupResource{Resource: "persistentvolumeclaims"}

// LimitRanger gives containers the default requests and limits of their namespace, and refuses pods
// and claims that are out of its bounds.
type LimitRanger struct {
	*admission.Handler
	ranges listers.LimitRangeLister
	client kubernetes.Interface
	// looked has the time and the answer of the last request to the API, for namespaces without
	// limits in the lister.
	looked *lru.Cache
}

var (
	_ admission.MutationInterface   = (*LimitRanger)(nil)
	_ admission.ValidationInterface = (*LimitRanger)(nil)
)

// NewLimitRanger returns the step.
func NewLimitRanger(ranges listers.LimitRangeLister, client kubernetes.Interface) *LimitRanger {
	return &LimitRanger{admission.NewHandler(admission.Create, admission.Update), ranges, client, lru.New(10000)}
}

// Admit implements admission.MutationInterface.
func (l *LimitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !limited(a) || !ok {
		return nil
	}
	ranges, err := l.rangesFor(ctx, a)
	for _, r := range ranges {
		setDefaults(pod, r)
	}
	return admissionErr(a, err)
}

// Validate implements admission.ValidationInterface.
func (l *LimitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !limited(a) {
		return nil
	}
	ranges, err := l.rangesFor(ctx, a)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	for _, r := range ranges {
		switch obj := a.GetObject().(type) {
		case *corev1.Pod:
			err = checkPod(obj, r)
		case *corev1.PersistentVolumeClaim:
			err = checkClaim(obj, r)
		}
		if err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	return nil
}

// limited reports whether a request may change fields that limits restrict. Only a resize changes a
// pod's containers.
func limited(a admission.Attributes) bool {
	if old := a.GetOldObject(); old != nil {
		if m, err := meta.Accessor(old); err == nil && m.GetDeletionTimestamp() != nil {
			return false
		}
	}
	switch a.GetResource().GroupResource() {
	case corev1.Resource("pods"):
		if a.GetOperation() == admission.Update {
			return a.GetSubresource() == "resize"
		}
		return a.GetSubresource() == ""
	case claims:
		return a.GetSubresource() == ""
	}
	return false
}

// lookAgain is how long the answer holds that a namespace has no limits.
const lookAgain = time.Second

// answer is the API's answer about a namespace.
type answer struct {
	at     time.Time
	ranges []*corev1.LimitRange
}

// rangesFor returns the limits of a namespace, in the order of their names. The lister may be
// behind a LimitRange that has just been made, so a namespace without limits in it is read from
// the API.
func (l *LimitRanger) rangesFor(ctx context.Context, a admission.Attributes) ([]*corev1.LimitRange, error) {
	namespace := a.GetNamespace()
	ranges, err := l.ranges.LimitRanges(namespace).List(labels.Everything())
	if err != nil {
		return nil,
			fmt.Errorf("unable to %s %v at this time because there was an error enforcing limit ranges",
				a.GetOperation(), a.GetResource())
	}
	if len(ranges) == 0 {
		last, ok := l.looked.Get(namespace)
		if !ok || time.Since(last.(answer).at) > lookAgain {
			list, err := l.client.CoreV1().LimitRanges(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			asked := answer{at: time.Now()}
			for i := range list.Items {
				asked.ranges = append(asked.ranges, &list.Items[i])
			}
			l.looked.Add(namespace, asked)
			last = asked
		}
		ranges = last.(answer).ranges
	}
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	return ranges, nil
}

// setDefaults sets requests and limits that the containers of a pod leave open, and lists them in
// an annotation.
func setDefaults(pod *corev1.Pod, r *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range r.Spec.Limits {
		if item := &r.Spec.Limits[i]; item.Type == corev1.LimitTypeContainer {
			fillIn(requests, item.DefaultRequest)
			fillIn(limits, item.Default)
		}
	}
	var set []string
	for _, list := range []struct {
		kind       string
		containers []corev1.Container
	}{{"container", pod.Spec.Containers}, {"init container", pod.Spec.InitContainers}} {
		for i := range list.containers {
			c := &list.containers[i]
			if c.Resources.Limits == nil {
				c.Resources.Limits = corev1.ResourceList{}
			}
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			if names := fillIn(c.Resources.Requests, requests); len(names) > 0 {
				set = append(set, fmt.Sprintf("%s request for %s %s", strings.Join(names, ", "), list.kind, c.Name))
			}
			if names := fillIn(c.Resources.Limits, limits); len(names) > 0 {
				set = append(set, fmt.Sprintf("%s limit for %s %s", strings.Join(names, ", "), list.kind, c.Name))
			}
		}
	}
	if len(set) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, limitRangerAnnotation,
			"LimitRanger plugin set: "+strings.Join(set, "; "))
	}
}

// fillIn adds the entries of other that list lacks, and returns their names in order.
func fillIn(list, other corev1.ResourceList) []string {
	var names []string
	for name, q := range other {
		if _, ok := list[name]; !ok {
			list[name] = q.DeepCopy()
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// demand has the requests and limits of a container, a pod or a claim.
type demand struct{ requests, limits corev1.ResourceList }

func checkPod(pod *corev1.Pod, r *corev1.LimitRange) error {
	var errs []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for j := range list {
					errs = append(errs, demand{list[j].Resources.Requests, list[j].Resources.Limits}.check(item)...)
				}
			}
		case corev1.LimitTypePod:
			spec := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
			errs = append(errs,
				demand{resourcehelper.PodRequests(pod, spec), resourcehelper.PodLimits(pod, spec)}.check(item)...)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// checkClaim uses the request alone: claims have no limits.
func checkClaim(claim *corev1.PersistentVolumeClaim, r *corev1.LimitRange) error {
	var errs []error
	d := demand{requests: claim.Spec.Resources.Requests}
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for _, name := range sortedNames(item.Min) {
			errs = append(errs, d.atLeast(item.Type, name, item.Min[name]))
		}
		for _, name := range sortedNames(item.Max) {
			errs = append(errs, d.requestAtMost(item.Type, name, item.Max[name]))
		}
	}
	return utilerrors.NewAggregate(errs)
}

func (d demand) check(item *corev1.LimitRangeItem) []error {
	var errs []error
	for _, name := range sortedNames(item.Min) {
		errs = append(errs, d.atLeast(item.Type, name, item.Min[name]))
	}
	for _, name := range sortedNames(item.Max) {
		errs = append(errs, d.atMost(item.Type, name, item.Max[name]))
	}
	for _, name := range sortedNames(item.MaxLimitRequestRatio) {
		errs = append(errs, d.ratio(item.Type, name, item.MaxLimitRequestRatio[name]))
	}
	return errs
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (d demand) atLeast(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := d.requests[name]
	limit, limited := d.limits[name]
	switch {
	case !requested:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, kind, bound.String())
	case request.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, kind, bound.String(),
			request.String())
	case limited && limit.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, kind, bound.String(), limit.String())
	}
	return nil
}

func (d demand) atMost(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity) error {
	limit, limited := d.limits[name]
	switch {
	case !limited:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, kind, bound.String())
	case limit.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, kind, bound.String(), limit.String())
	}
	if _, requested := d.requests[name]; requested {
		return d.requestAtMost(kind, name, bound)
	}
	return nil
}

func (d demand) requestAtMost(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := d.requests[name]
	switch {
	case !requested:
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, kind, bound.String())
	case request.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, kind, bound.String(),
			request.String())
	}
	return nil
}

func (d demand) ratio(kind corev1.LimitType, name corev1.ResourceName, most resource.Quantity) error {
	request, limit := d.requests[name], d.limits[name]
	if request.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0",
			name, kind, most.String())
	}
	if limit.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name,
			kind, most.String())
	}
	// Thousandths, where they do not overflow: 300m/100m is 3.
	value := func(q *resource.Quantity) float64 { return float64(q.MilliValue()) }
	if max(request.Value(), limit.Value(), most.Value()) > resource.MaxMilliValue {
		value = func(q *resource.Quantity) float64 { return float64(q.Value()) * 1000 }
	}
	if is := value(&limit) / value(&request); is*1000 > value(&most) {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, kind,
			most.String(), is)
	}
	return nil
}
