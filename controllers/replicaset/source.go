package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// source is the API kind whose objects the controller handles as ReplicaSets. Its results belong to
// the informer.
type source interface {
	kind() schema.GroupVersionKind
	informer() cache.SharedIndexInformer
	get(namespace, name string) (*appsv1.ReplicaSet, error)
	// matching returns those that select a pod.
	matching(pod *corev1.Pod) []*appsv1.ReplicaSet
	// watch queues changed objects, and calls gone for deleted ones.
	watch(loop *runtime.Loop, gone func(types.UID))
	// read asks the API server.
	read(ctx context.Context, client kubernetes.Interface, namespace, name string) (*appsv1.ReplicaSet, error)
	// newest asks the API server for its newest revision.
	newest(ctx context.Context, client kubernetes.Interface) (string, error)
	// status removes the fields that the kind lacks.
	status(appsv1.ReplicaSetStatus) appsv1.ReplicaSetStatus
	// writeStatus writes the status of set, and returns the object as written.
	writeStatus(ctx context.Context, client kubernetes.Interface, set *appsv1.ReplicaSet) (metav1.Object, error)
	// subject is the object for events.
	subject(set *appsv1.ReplicaSet) kruntime.Object
}

// own are ReplicaSets themselves.
type own struct {
	sets cache.SharedIndexInformer
	list appslisters.ReplicaSetLister
}

func ownOf(factory informers.SharedInformerFactory) source {
	sets := factory.Apps().V1().ReplicaSets()
	return own{sets.Informer(), sets.Lister()}
}

func (own) kind() schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind("ReplicaSet") }

func (o own) informer() cache.SharedIndexInformer { return o.sets }

func (o own) get(namespace, name string) (*appsv1.ReplicaSet, error) {
	return o.list.ReplicaSets(namespace).Get(name)
}

func (o own) matching(pod *corev1.Pod) []*appsv1.ReplicaSet {
	// The lister's own match is an error when nothing matches.
	sets, err := o.list.GetPodReplicaSets(pod)
	if err != nil {
		return nil
	}
	return sets
}

func (o own) watch(loop *runtime.Loop, gone func(types.UID)) {
	runtime.WatchOwners[appsv1.ReplicaSet](loop, o.sets, gone)
}

func (own) read(ctx context.Context, client kubernetes.Interface, namespace, name string) (*appsv1.ReplicaSet, error) {
	return client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (own) newest(ctx context.Context, client kubernetes.Interface) (string, error) {
	return pods.Newest(client.AppsV1().ReplicaSets(metav1.NamespaceAll).List)(ctx)
}

func (own) status(s appsv1.ReplicaSetStatus) appsv1.ReplicaSetStatus { return s }

func (own) writeStatus(
	ctx context.Context, client kubernetes.Interface, set *appsv1.ReplicaSet,
) (metav1.Object, error) {
	now, err := client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return now, nil
}

func (own) subject(set *appsv1.ReplicaSet) kruntime.Object { return set }

// replication are ReplicationControllers, which are ReplicaSets with fewer selectors.
type replication struct {
	controllers cache.SharedIndexInformer
	list        corelisters.ReplicationControllerLister
}

func replicationOf(factory informers.SharedInformerFactory) source {
	controllers := factory.Core().V1().ReplicationControllers()
	return replication{controllers.Informer(), controllers.Lister()}
}

func (replication) kind() schema.GroupVersionKind {
	return corev1.SchemeGroupVersion.WithKind("ReplicationController")
}

func (r replication) informer() cache.SharedIndexInformer { return r.controllers }

func (r replication) get(namespace, name string) (*appsv1.ReplicaSet, error) {
	rc, err := r.list.ReplicationControllers(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return asSet(rc), nil
}

func (r replication) matching(pod *corev1.Pod) []*appsv1.ReplicaSet {
	controllers, err := r.list.GetPodControllers(pod)
	if err != nil {
		return nil
	}
	sets := make([]*appsv1.ReplicaSet, len(controllers))
	for i, rc := range controllers {
		sets[i] = asSet(rc)
	}
	return sets
}

func (r replication) watch(loop *runtime.Loop, gone func(types.UID)) {
	runtime.WatchOwners[corev1.ReplicationController](loop, r.controllers, gone)
}

func (replication) read(
	ctx context.Context, client kubernetes.Interface, namespace, name string,
) (*appsv1.ReplicaSet, error) {
	rc, err := client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return asSet(rc), nil
}

func (replication) newest(ctx context.Context, client kubernetes.Interface) (string, error) {
	return pods.Newest(client.CoreV1().ReplicationControllers(metav1.NamespaceAll).List)(ctx)
}

func (replication) status(s appsv1.ReplicaSetStatus) appsv1.ReplicaSetStatus {
	s.TerminatingReplicas = nil
	return s
}

func (r replication) writeStatus(
	ctx context.Context, client kubernetes.Interface, set *appsv1.ReplicaSet,
) (metav1.Object, error) {
	now, err := client.CoreV1().ReplicationControllers(set.Namespace).UpdateStatus(ctx, asController(set),
		metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return now, nil
}

func (replication) subject(set *appsv1.ReplicaSet) kruntime.Object { return asController(set) }

// asSet converts a ReplicationController to a ReplicaSet. They share memory.
func asSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:     rc.Status.ReadyReplicas,
			AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		set.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		set.Status.Conditions = append(set.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message})
	}
	return set
}

// asController is the reverse of asSet.
func asController(set *appsv1.ReplicaSet) *corev1.ReplicationController {
	rc := &corev1.ReplicationController{
		ObjectMeta: set.ObjectMeta,
		Spec: corev1.ReplicationControllerSpec{
			Replicas: set.Spec.Replicas, MinReadySeconds: set.Spec.MinReadySeconds, Template: &set.Spec.Template,
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas: set.Status.Replicas, FullyLabeledReplicas: set.Status.FullyLabeledReplicas,
			ReadyReplicas:     set.Status.ReadyReplicas,
			AvailableReplicas: set.Status.AvailableReplicas, ObservedGeneration: set.Status.ObservedGeneration,
		},
	}
	if set.Spec.Selector != nil {
		rc.Spec.Selector = set.Spec.Selector.MatchLabels
	}
	for _, c := range set.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	return rc
}
