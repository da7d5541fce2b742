package fairness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// manager is the field manager that kube-apiserver has for the objects of every cluster.
const manager = "api-priority-and-fairness-config-producer-v1"

// Served reports whether a server serves the kinds that configure priority and fairness.
func Served(serves func(schema.GroupVersionResource) bool) bool {
	v1 := flowcontrolv1.SchemeGroupVersion
	return serves(v1.WithResource("flowschemas")) && serves(v1.WithResource("prioritylevelconfigurations"))
}

// Ensure creates the priority levels and flow schemas that every cluster has, and repairs them. It
// compares with the informers, so no request is made while all is right.
func Ensure(ctx context.Context, client kubernetes.Interface, informers informers.SharedInformerFactory) error {
	v1 := informers.Flowcontrol().V1()
	levels, err := v1.PriorityLevelConfigurations().Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("priority levels of every cluster: %w", err)
	}
	schemas, err := v1.FlowSchemas().Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("flow schemas of every cluster: %w", err)
	}
	// Levels come first: a schema whose level is missing is not used.
	return errors.Join(
		act(ctx, "priority level", client.FlowcontrolV1().PriorityLevelConfigurations(), decide(levels, levelDefaults)),
		act(ctx, "flow schema", client.FlowcontrolV1().FlowSchemas(), decide(schemas, schemaDefaults)),
	)
}

// object is one of the two kinds.
type object[T any] interface {
	*T
	metav1.Object
	DeepCopy() *T
}

// defaults are the objects of one kind that every cluster has.
type defaults[T any, P object[T]] struct {
	mandatory, suggested []P
	// adopt gives an object the wanted spec, except for fields that its owner may choose, and
	// reports whether that changed it.
	adopt func(into, want P) bool
}

var (
	levelDefaults = defaults[flowcontrolv1.PriorityLevelConfiguration, *flowcontrolv1.PriorityLevelConfiguration]{
		bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations, adoptLevel,
	}
	schemaDefaults = defaults[flowcontrolv1.FlowSchema, *flowcontrolv1.FlowSchema]{
		bootstrap.MandatoryFlowSchemas, append(slices.Clone(bootstrap.SuggestedFlowSchemas), serversSchema),
		adoptSchema,
	}
)

func adoptSchema(into, want *flowcontrolv1.FlowSchema) bool {
	if apiequality.Semantic.DeepEqual(into.Spec, want.Spec) {
		return false
	}
	want.Spec.DeepCopyInto(&into.Spec)
	return true
}

// adoptLevel leaves to its owner how much of the server exempt requests hold back from others.
func adoptLevel(into, want *flowcontrolv1.PriorityLevelConfiguration) bool {
	spec := want.Spec.DeepCopy()
	if exempt := into.Spec.Exempt; exempt != nil && spec.Exempt != nil {
		spec.Exempt = exempt
	}
	if apiequality.Semantic.DeepEqual(&into.Spec, spec) {
		return false
	}
	into.Spec = *spec
	return true
}

// plan has the changes to make for one kind.
type plan[P any] struct{ create, update, remove []P }

// decide compares the existing objects with those of every cluster. An object that follows the
// defaults, and is a default no more, is removed.
func decide[T any, P object[T]](is []P, of defaults[T, P]) plan[P] {
	var todo plan[P]
	others := map[string]P{}
	for _, o := range is {
		others[o.GetName()] = o
	}
	compare := func(want P, mandatory bool) {
		current, ok := others[want.GetName()]
		delete(others, want.GetName())
		if !ok {
			todo.create = append(todo.create, want.DeepCopy())
			return
		}
		var next P = current.DeepCopy()
		follows := mandatory || followsDefaults(current)
		changed := follows && of.adopt(next, want)
		if said, err := autoUpdate(current); err != nil || said != follows {
			annotations := map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: strconv.FormatBool(follows)}
			for k, v := range current.GetAnnotations() {
				if k != flowcontrolv1.AutoUpdateAnnotationKey {
					annotations[k] = v
				}
			}
			next.SetAnnotations(annotations)
			changed = true
		}
		if changed {
			todo.update = append(todo.update, next)
		}
	}
	for _, want := range of.mandatory {
		compare(want, true)
	}
	for _, want := range of.suggested {
		compare(want, false)
	}
	for _, o := range is { // in their order
		if said, err := autoUpdate(o); others[o.GetName()] != nil && err == nil && said {
			todo.remove = append(todo.remove, o)
		}
	}
	return todo
}

// followsDefaults reports whether a suggested object is kept as suggested: as its annotation says
// or, without one, until its spec has been changed.
func followsDefaults(o metav1.Object) bool {
	said, err := autoUpdate(o)
	if err != nil {
		return o.GetGeneration() == 1
	}
	return said
}

func autoUpdate(o metav1.Object) (bool, error) {
	return strconv.ParseBool(o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
}

// writer is the client of one of the two kinds.
type writer[P any] interface {
	Create(context.Context, P, metav1.CreateOptions) (P, error)
	Update(context.Context, P, metav1.UpdateOptions) (P, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// act carries a plan out as far as it goes. Where another server was faster, the next round
// sees it.
func act[P metav1.Object](ctx context.Context, kind string, client writer[P], todo plan[P]) error {
	var errs []error
	failed := func(o P, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", kind, o.GetName(), err))
		}
	}
	for _, o := range todo.create {
		_, err := client.Create(ctx, o, metav1.CreateOptions{FieldManager: manager})
		failed(o, unless(apierrors.IsAlreadyExists, err))
	}
	for _, o := range todo.update {
		_, err := client.Update(ctx, o, metav1.UpdateOptions{FieldManager: manager})
		failed(o, unless(apierrors.IsConflict, unless(apierrors.IsNotFound, err)))
	}
	for _, o := range todo.remove {
		err := client.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: ptr.To(o.GetUID()), ResourceVersion: ptr.To(o.GetResourceVersion()),
		}})
		failed(o, unless(apierrors.IsConflict, unless(apierrors.IsNotFound, err)))
	}
	return errors.Join(errs...)
}

func unless(expected func(error) bool, err error) error {
	if expected(err) {
		return nil
	}
	return err
}
