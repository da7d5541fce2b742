package hpa

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	cached "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	customv1beta2 "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"
)

const (
	// patience bounds one request: the servers of custom and external metrics are not Barque's.
	patience = 15 * time.Second
	// discoverAgain is the least pause between two discoveries for a missing kind.
	discoverAgain = 30 * time.Second
	// defaultWindow is the window of custom metrics that have none.
	defaultWindow = time.Minute
)

// newSources makes the clients of a term.
func newSources(config *rest.Config) (scales, metricsReader, error) {
	config = rest.CopyConfig(config)
	config.Timeout = patience
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	kinds := &kinds{apis: custom_metrics.NewAvailableAPIsGetter(client)}
	kinds.mapper = restmapper.NewDeferredDiscoveryRESTMapper(cached.NewMemCacheClient(client))
	// The scale client uses JSON for kinds of other API servers.
	plain := rest.CopyConfig(config)
	plain.ContentConfig = rest.ContentConfig{}
	subresources, err := scale.NewForConfig(plain, kinds.mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(client))
	if err != nil {
		return nil, nil, err
	}
	resources, err := metricsclient.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	external, err := external_metrics.NewForConfig(plain)
	if err != nil {
		return nil, nil, err
	}
	return &targets{kinds, subresources}, &clients{
		kinds: kinds, resources: resources, custom: custom_metrics.NewForConfig(plain, kinds.mapper, kinds.apis),
		external: external,
	}, nil
}

// kinds has the API's discovery. It reads it at the first use, and again for a missing kind, which
// may be served since.
type kinds struct {
	mapper meta.ResettableRESTMapper
	apis   custom_metrics.AvailableAPIsGetter

	mu    sync.Mutex
	reset time.Time
}

// again reports whether to repeat the discovery for a missing kind.
func (k *kinds) again() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.reset) < discoverAgain {
		return false
	}
	k.reset = time.Now()
	k.mapper.Reset()
	k.apis.Invalidate()
	return true
}

// targets implements scales.
type targets struct {
	kinds  *kinds
	client scale.ScalesGetter
}

func (t *targets) get(
	ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference,
) (*autoscalingv1.Scale, schema.GroupResource, error) {
	found, of, err := t.find(ctx, namespace, ref)
	if err != nil && (meta.IsNoMatchError(err) || apierrors.IsNotFound(err)) && t.kinds.again() {
		found, of, err = t.find(ctx, namespace, ref)
	}
	return found, of, err
}

// find tries the versions of the kind, the preferred one first; the first error counts.
func (t *targets) find(
	ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference,
) (*autoscalingv1.Scale, schema.GroupResource, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	mappings, err := t.kinds.mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	var first error
	for _, m := range mappings {
		of := m.Resource.GroupResource()
		found, err := t.client.Scales(namespace).Get(ctx, of, ref.Name, metav1.GetOptions{})
		if err == nil {
			return found, of, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errors.New("unrecognized resource")
	}
	return nil, schema.GroupResource{}, first
}

func (t *targets) put(ctx context.Context, of schema.GroupResource, s *autoscalingv1.Scale) error {
	_, err := t.client.Scales(s.Namespace).Update(ctx, of, s, metav1.UpdateOptions{})
	return err
}

// clients implements metricsReader by the three APIs of metrics.
type clients struct {
	kinds     *kinds
	resources metricsclient.PodMetricsesGetter
	custom    custom_metrics.CustomMetricsClient
	external  external_metrics.ExternalMetricsClient
}

func (c *clients) read(
	ctx context.Context, namespace string, selector labels.Selector, m *autoscalingv2.MetricSpec,
) (r reading) {
	switch m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		r.samples, r.err = c.resource(ctx, namespace, selector, m.Resource.Name, "")
	case autoscalingv2.ContainerResourceMetricSourceType:
		r.samples, r.err = c.resource(ctx, namespace, selector, m.ContainerResource.Name, m.ContainerResource.Container)
	case autoscalingv2.PodsMetricSourceType:
		r.samples, r.err = c.pods(namespace, selector, m.Pods.Metric)
	case autoscalingv2.ObjectMetricSourceType:
		r.values, r.err = c.object(namespace, m.Object)
	case autoscalingv2.ExternalMetricSourceType:
		r.values, r.err = c.others(namespace, m.External.Metric)
	}
	return r
}

// resource reads the usage of the pods, or of one container of each.
func (c *clients) resource(
	ctx context.Context, namespace string, selector labels.Selector, name corev1.ResourceName, container string,
) (map[string]sample, error) {
	list, err := c.resources.PodMetricses(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	samples := make(map[string]sample, len(list.Items))
	for i := range list.Items {
		m := &list.Items[i]
		if value, ok := used(m, name, container); ok {
			samples[m.Name] = sample{value, m.Timestamp.Time, m.Window.Duration}
		}
	}
	return samples, nil
}

// used adds up the usage of a pod's containers. Without a value for each the sum is unknown.
func used(m *metricsv1beta1.PodMetrics, name corev1.ResourceName, container string) (sum int64, ok bool) {
	for _, c := range m.Containers {
		if container != "" && c.Name != container {
			continue
		}
		value, found := c.Usage[name]
		if !found {
			return 0, false
		}
		sum, ok = sum+value.MilliValue(), true
	}
	return sum, ok
}

func (c *clients) pods(
	namespace string, selector labels.Selector, metric autoscalingv2.MetricIdentifier,
) (map[string]sample, error) {
	of, err := metav1.LabelSelectorAsSelector(metric.Selector)
	if err != nil {
		return nil, err
	}
	list, err := retrying(c.kinds, func() (*customv1beta2.MetricValueList, error) {
		return c.custom.NamespacedMetrics(namespace).GetForObjects(schema.GroupKind{Kind: "Pod"}, selector, metric.Name,
			of)
	})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	samples := make(map[string]sample, len(list.Items))
	for _, m := range list.Items {
		window := defaultWindow
		if m.WindowSeconds != nil {
			window = time.Duration(*m.WindowSeconds) * time.Second
		}
		samples[m.DescribedObject.Name] = sample{m.Value.MilliValue(), m.Timestamp.Time, window}
	}
	return samples, nil
}

func (c *clients) object(namespace string, m *autoscalingv2.ObjectMetricSource) ([]int64, error) {
	of, err := metav1.LabelSelectorAsSelector(m.Metric.Selector)
	if err != nil {
		return nil, err
	}
	object := m.DescribedObject
	kind := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind).GroupKind()
	value, err := retrying(c.kinds, func() (*customv1beta2.MetricValue, error) {
		if kind == (schema.GroupKind{Kind: "Namespace"}) {
			// Its own namespace is the only one that an autoscaler may look at.
			return c.custom.RootScopedMetrics().GetForObject(kind, namespace, m.Metric.Name, of)
		}
		return c.custom.NamespacedMetrics(namespace).GetForObject(kind, object.Name, m.Metric.Name, of)
	})
	if err != nil {
		return nil,
			fmt.Errorf("unable to get metric %s on %s %s/%s: unable to fetch metrics from custom metrics API: %w",
				m.Metric.Name, object.Kind, namespace, object.Name, err)
	}
	return []int64{value.Value.MilliValue()}, nil
}

// retrying asks once more when there was no such API.
func retrying[T any](k *kinds, ask func() (T, error)) (T, error) {
	v, err := ask()
	if err != nil && k.again() {
		return ask()
	}
	return v, err
}

func (c *clients) others(namespace string, metric autoscalingv2.MetricIdentifier) ([]int64, error) {
	of, err := metav1.LabelSelectorAsSelector(metric.Selector)
	if err != nil {
		return nil, err
	}
	list, err := c.external.NamespacedMetrics(namespace).List(metric.Name, of)
	if err == nil && len(list.Items) == 0 {
		err = errors.New("no metrics returned from external metrics API")
	} else if err != nil {
		err = fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if err != nil {
		return nil,
			fmt.Errorf("unable to get external metric %s/%s/%+v: %w", namespace, metric.Name, metric.Selector, err)
	}
	values := make([]int64, 0, len(list.Items))
	for _, m := range list.Items {
		values = append(values, m.Value.MilliValue())
	}
	return values, nil
}
