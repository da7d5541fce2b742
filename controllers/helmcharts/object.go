// Package helmcharts installs, upgrades and uninstalls the releases of HelmChart objects, in the
// API group of k3s. Helm runs in the leader (package release): there are no jobs and no pods.
//
// Invariants:
//   - All writes, Helm's too, carry the term of the leader.
//   - What is installed is in Helm's own records, with a digest of what was asked for. Nothing else
//     decides whether there is something to do.
//   - A record that says pending was left by an ended leader, or by somebody's helm command that
//     was interrupted. It is marked as interrupted and taken up again; an interruption is no failure,
//     and uninstalls nothing.
//   - Two HelmCharts never write one release: the older one counts.
package helmcharts

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Definitions of HelmCharts and HelmChartConfigs.
var (
	//go:embed helmchart.yaml
	Definition []byte
	//go:embed helmchartconfig.yaml
	ConfigDefinition []byte
)

// Resources and kinds.
var (
	groupVersion   = schema.GroupVersion{Group: "helm.cattle.io", Version: "v1"}
	Resource       = groupVersion.WithResource("helmcharts")
	ConfigResource = groupVersion.WithResource("helmchartconfigs")
	Kind           = groupVersion.WithKind("HelmChart")
)

// Names of k3s' controller, so that objects of a k3s cluster work here as they are.
const (
	// finalizer keeps a HelmChart until its release is uninstalled.
	finalizer = "wrangler.cattle.io/on-helm-chart-remove"
	// unmanaged is an annotation of HelmCharts that nobody installs; managedBy names who does.
	unmanaged   = "helmcharts.helm.cattle.io/unmanaged"
	managedBy   = "helmcharts.cattle.io/managed-by"
	managerName = "helm-controller"
)

// Failure policies.
const (
	reinstall = "reinstall"
	retry     = "retry"
	abort     = "abort"
)

// Object is a HelmChart.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec,omitzero"`
	Status            Status `json:"status,omitzero"`
}

// Spec is described in the definition.
type Spec struct {
	Chart                 string                        `json:"chart,omitempty"`
	Version               string                        `json:"version,omitempty"`
	Repo                  string                        `json:"repo,omitempty"`
	TargetNamespace       string                        `json:"targetNamespace,omitempty"`
	CreateNamespace       bool                          `json:"createNamespace,omitempty"`
	Set                   map[string]intstr.IntOrString `json:"set,omitempty"`
	ValuesSpec            `json:",inline"`
	ChartContent          string           `json:"chartContent,omitempty"`
	HelmVersion           string           `json:"helmVersion,omitempty"`
	BackOffLimit          *int32           `json:"backOffLimit,omitempty"`
	Timeout               *metav1.Duration `json:"timeout,omitempty"`
	TakeOwnership         bool             `json:"takeOwnership,omitempty"`
	Driver                string           `json:"driver,omitempty"`
	AuthSecret            Reference        `json:"authSecret,omitzero"`
	AuthPassCredentials   bool             `json:"authPassCredentials,omitempty"`
	DockerRegistrySecret  Reference        `json:"dockerRegistrySecret,omitzero"`
	RepoCA                string           `json:"repoCA,omitempty"`
	RepoCAConfigMap       Reference        `json:"repoCAConfigMap,omitzero"`
	InsecureSkipTLSVerify bool             `json:"insecureSkipTLSVerify,omitempty"`
	PlainHTTP             bool             `json:"plainHTTP,omitempty"`
	JobImage              string           `json:"jobImage,omitempty"`
	PodSecurityContext    map[string]any   `json:"podSecurityContext,omitempty"`
	SecurityContext       map[string]any   `json:"securityContext,omitempty"`
}

// ValuesSpec are the fields that HelmCharts and HelmChartConfigs have both.
type ValuesSpec struct {
	Values         map[string]any `json:"values,omitempty"`
	ValuesContent  string         `json:"valuesContent,omitempty"`
	ValuesSecrets  []ValuesSecret `json:"valuesSecrets,omitempty"`
	FailurePolicy  string         `json:"failurePolicy,omitempty"`
	ForceConflicts bool           `json:"forceConflicts,omitempty"`
	ServerSide     string         `json:"serverSide,omitempty"`
}

// ValuesSecret names keys of a Secret with values as YAML.
type ValuesSecret struct {
	Name          string   `json:"name,omitempty"`
	Keys          []string `json:"keys,omitempty"`
	IgnoreUpdates bool     `json:"ignoreUpdates,omitempty"`
}

// Reference names an object of the HelmChart's namespace.
type Reference struct {
	Name string `json:"name,omitempty"`
}

// Status is described in the definition.
type Status struct {
	JobName    string      `json:"jobName,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition has the form of k3s, without a time.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Conditions of a HelmChart.
const (
	// Deployed is True when the release is as the object asks.
	Deployed = "Deployed"
	// Failed is True when an attempt has failed. It is k3s' condition.
	Failed = "Failed"
)

// Config is a HelmChartConfig.
type Config struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ValuesSpec `json:"spec,omitzero"`
}

// read converts an object of the API. Numbers of values become float64, as Helm reads them:
// templates compare them so.
func read[T any](u *unstructured.Unstructured) (*T, error) {
	var o T
	raw, err := json.Marshal(u.Object)
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	return &o, nil
}

// namespace is that of the release.
func (o *Object) namespace() string {
	if o.Spec.TargetNamespace != "" {
		return o.Spec.TargetNamespace
	}
	return o.Namespace
}

// managed reports whether the object is this controller's work.
func (o *Object) managed() bool {
	if _, no := o.Annotations[unmanaged]; no {
		return false
	}
	if by, named := o.Annotations[managedBy]; named && by != managerName {
		return false
	}
	return o.Spec.Chart != "" || o.Spec.ChartContent != ""
}

// idle are the fields that are set and have no effect here.
func (o *Object) idle() string {
	var fields []string
	if o.Spec.JobImage != "" {
		fields = append(fields, "jobImage")
	}
	if len(o.Spec.PodSecurityContext) > 0 {
		fields = append(fields, "podSecurityContext")
	}
	if len(o.Spec.SecurityContext) > 0 {
		fields = append(fields, "securityContext")
	}
	return strings.Join(fields, ", ")
}
