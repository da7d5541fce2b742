// Package flowschema tells in the status of each FlowSchema whether the priority level that it names
// exists. In kube-apiserver the servers themselves do this, beside limiting requests; which requests
// are limited how is not decided here.
package flowschema

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	flowcontrollisters "k8s.io/client-go/listers/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller writes the condition Dangling.
type Controller struct {
	cfg        Config
	schemas    cache.SharedIndexInformer
	levels     cache.SharedIndexInformer
	list       flowcontrollisters.FlowSchemaLister
	listLevels flowcontrollisters.PriorityLevelConfigurationLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	v1 := cfg.Informers.Flowcontrol().V1()
	return &Controller{
		cfg: cfg, schemas: v1.FlowSchemas().Informer(), levels: v1.PriorityLevelConfigurations().Informer(),
		list: v1.FlowSchemas().Lister(), listLevels: v1.PriorityLevelConfigurations().Lister(),
	}, nil
}

// Run writes for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("flowschema", 1, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.schemas, func(_, now *flowcontrolv1.FlowSchema) []runtime.Key {
		if now == nil {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.loop, c.levels, func(old, now *flowcontrolv1.PriorityLevelConfiguration) []runtime.Key {
		if old != nil && now != nil {
			return nil // it has been there, and is
		}
		if now == nil {
			now = old
		}
		return c.naming(now.Name)
	})
	return t.loop.Run(ctx)
}

// naming lists the FlowSchemas that name a priority level.
func (c *Controller) naming(level string) []runtime.Key {
	all, err := c.list.List(labels.Everything())
	if err != nil {
		return nil
	}
	var out []runtime.Key
	for _, s := range all {
		if s.Spec.PriorityLevelConfiguration.Name == level {
			out = append(out, runtime.KeyOf(s))
		}
	}
	return out
}

// term is what belongs to one term of leadership.
type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	s, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	_, err = t.listLevels.Get(s.Spec.PriorityLevelConfiguration.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	next, changed := decide(s, err == nil, metav1.Now())
	if !changed {
		return 0, nil
	}
	next, err = t.client.FlowcontrolV1().FlowSchemas().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("the status of FlowSchema %s: %w", key.Name, err)
	}
	t.loop.Writes().Wrote(key, t.schemas, next.ResourceVersion)
	return 0, nil
}

// decide returns the FlowSchema with the condition that it should have, and whether it is another
// one. The mandatory levels are there for a server also while they are no objects.
func decide(s *flowcontrolv1.FlowSchema, exists bool, now metav1.Time) (*flowcontrolv1.FlowSchema, bool) {
	name := s.Spec.PriorityLevelConfiguration.Name
	exists = exists || name == flowcontrolv1.PriorityLevelConfigurationNameExempt || name == flowcontrolv1.PriorityLevelConfigurationNameCatchAll
	want := flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, LastTransitionTime: now,
		Reason:  "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", name),
	}
	if !exists {
		want.Status, want.Reason = flowcontrolv1.ConditionTrue, "NotFound"
		want.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", name)
	}
	s = s.DeepCopy()
	i := slices.IndexFunc(s.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool { return c.Type == want.Type })
	if i < 0 {
		s.Status.Conditions = append(s.Status.Conditions, want)
		return s, true
	}
	is := &s.Status.Conditions[i]
	if is.Status == want.Status {
		want.LastTransitionTime = is.LastTransitionTime
	}
	changed := is.Status != want.Status || is.Reason != want.Reason || is.Message != want.Message
	*is = want
	return s, changed
}
