package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/barque/barque/scheduler/framework"
)

// validate checks all settings but the plugins, which the builder of profiles checks.
func validate(c *configv1.KubeSchedulerConfiguration) (errs field.ErrorList) {
	if c.Parallelism != nil && *c.Parallelism <= 0 {
		errs = append(errs,
			field.Invalid(field.NewPath("parallelism"), *c.Parallelism, "should be an integer value greater than zero"))
	}
	path := field.NewPath("profiles")
	byName := map[string]int{}
	for i := range c.Profiles {
		p, path := &c.Profiles[i], path.Index(i)
		errs = append(errs, validatePercentage(path.Child("percentageOfNodesToScore"), p.PercentageOfNodesToScore)...)
		if p.SchedulerName == nil || *p.SchedulerName == "" {
			errs = append(errs, field.Required(path.Child("schedulerName"), ""))
			continue
		}
		if first, ok := byName[*p.SchedulerName]; ok {
			errs = append(errs,
				field.Duplicate(path.Child("schedulerName"),
					field.NewPath("profiles").Index(first).Child("schedulerName").String()))
		}
		byName[*p.SchedulerName] = i
	}
	errs = append(errs, validateQueueSort(path, c.Profiles)...)
	errs = append(errs, validatePercentage(field.NewPath("percentageOfNodesToScore"), c.PercentageOfNodesToScore)...)
	if *c.PodInitialBackoffSeconds <= 0 {
		errs = append(errs,
			field.Invalid(field.NewPath("podInitialBackoffSeconds"), *c.PodInitialBackoffSeconds,
				"must be greater than 0"))
	}
	if *c.PodMaxBackoffSeconds < *c.PodInitialBackoffSeconds {
		errs = append(errs,
			field.Invalid(field.NewPath("podMaxBackoffSeconds"), *c.PodMaxBackoffSeconds,
				"must be greater than or equal to PodInitialBackoffSeconds"))
	}
	for _, s := range []struct {
		name  string
		value int64
	}{{"podInitialBackoffSeconds", *c.PodInitialBackoffSeconds}, {"podMaxBackoffSeconds", *c.PodMaxBackoffSeconds}} {
		if s.value > maxSeconds {
			errs = append(errs,
				field.Invalid(field.NewPath(s.name), s.value,
					fmt.Sprintf("must be less than or equal to %d", maxSeconds)))
		}
	}
	return append(errs, validateExtenders(field.NewPath("extenders"), c.Extenders)...)
}

// maxSeconds is a year. Much more would not fit a duration.
const maxSeconds = 365 * 24 * 60 * 60

func validatePercentage(path *field.Path, percentage *int32) field.ErrorList {
	if percentage != nil && (*percentage < 0 || *percentage > 100) {
		return field.ErrorList{field.Invalid(path, *percentage, "not in valid range [0-100]")}
	}
	return nil
}

func validateExtenders(path *field.Path, extenders []configv1.Extender) (errs field.ErrorList) {
	binders, managed := 0, sets.New[string]()
	for i, e := range extenders {
		path := path.Index(i)
		if u, err := url.Parse(e.URLPrefix); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			errs = append(errs,
				field.Invalid(path.Child("urlPrefix"), e.URLPrefix,
					"must be the address of an HTTP server, such as http://10.0.0.9:8888/scheduler"))
		}
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			errs = append(errs,
				field.Invalid(path.Child("weight"), e.Weight, "must have a positive weight applied to it"))
		}
		if e.HTTPTimeout.Duration < 0 {
			errs = append(errs,
				field.Invalid(path.Child("httpTimeout"), e.HTTPTimeout.Duration.String(), "must not be negative"))
		}
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			path := path.Child("managedResources").Index(j).Child("name")
			errs = append(errs, validateExtendedResource(path, r.Name)...)
			if managed.Has(r.Name) {
				errs = append(errs, field.Invalid(path, r.Name, "duplicate extender managed resource name"))
			}
			managed.Insert(r.Name)
		}
	}
	if binders > 1 {
		errs = append(errs,
			field.Invalid(path, fmt.Sprintf("found %d extenders implementing bind", binders),
				"only one extender can implement bind"))
	}
	return errs
}

func validateExtendedResource(path *field.Path, name string) (errs field.ErrorList) {
	for _, bad := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, bad))
	}
	if len(errs) == 0 && !framework.IsExtendedResource(v1.ResourceName(name)) {
		errs = append(errs, field.Invalid(path, name, "is an invalid extended resource name"))
	}
	return errs
}

// validateArgs checks the arguments of a plugin, with defaults filled in.
func validateArgs(path *field.Path, args runtime.Object) field.ErrorList {
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		return validatePreemption(path, a)
	case *configv1.InterPodAffinityArgs:
		if w := *a.HardPodAffinityWeight; w < 0 || w > 100 {
			return field.ErrorList{field.Invalid(path.Child("hardPodAffinityWeight"), w, "not in valid range [0, 100]")}
		}
	case *configv1.NodeAffinityArgs:
		return validateAddedAffinity(path.Child("addedAffinity"), a.AddedAffinity)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		return validateBalanced(path.Child("resources"), a.Resources)
	case *configv1.NodeResourcesFitArgs:
		return validateFit(path, a)
	case *configv1.PodTopologySpreadArgs:
		return validateSpread(path, a)
	case *configv1.VolumeBindingArgs:
		errs := validateShape(path.Child("shape"), a.Shape)
		if s := *a.BindTimeoutSeconds; s < 0 {
			errs = append(errs,
				field.Invalid(path.Child("bindTimeoutSeconds"), s,
					"invalid BindTimeoutSeconds, should not be a negative value"))
		}
		return errs
	case *configv1.DynamicResourcesArgs:
		return validateDynamicResources(path, a)
	}
	return nil
}

func validatePreemption(path *field.Path, a *configv1.DefaultPreemptionArgs) (errs field.ErrorList) {
	percentage, absolute := *a.MinCandidateNodesPercentage, *a.MinCandidateNodesAbsolute
	percentagePath, absolutePath := path.Child("minCandidateNodesPercentage"), path.Child("minCandidateNodesAbsolute")
	if percentage < 0 || percentage > 100 {
		errs = append(errs, field.Invalid(percentagePath, percentage, "not in valid range [0, 100]"))
	}
	if absolute < 0 {
		errs = append(errs, field.Invalid(absolutePath, absolute, "not in valid range [0, inf)"))
	}
	if percentage == 0 && absolute == 0 {
		errs = append(errs,
			field.Invalid(percentagePath, percentage, "cannot be zero at the same time as minCandidateNodesAbsolute"),
			field.Invalid(absolutePath, absolute, "cannot be zero at the same time as minCandidateNodesPercentage"))
	}
	return errs
}

func validateAddedAffinity(path *field.Path, a *v1.NodeAffinity) (errs field.ErrorList) {
	if a == nil {
		return nil
	}
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		path := path.Child("requiredDuringSchedulingIgnoredDuringExecution")
		_, err := nodeaffinity.NewNodeSelector(required, field.WithPath(path))
		errs = append(errs, fieldErrors(path, err)...)
	}
	if preferred := a.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		path := path.Child("preferredDuringSchedulingIgnoredDuringExecution")
		_, err := nodeaffinity.NewPreferredSchedulingTerms(preferred, field.WithPath(path))
		errs = append(errs, fieldErrors(path, err)...)
	}
	return errs
}

// fieldErrors splits an error that may join several errors about fields.
func fieldErrors(path *field.Path, err error) (errs field.ErrorList) {
	if err == nil {
		return nil
	}
	list := []error{err}
	var several utilerrors.Aggregate
	if errors.As(err, &several) {
		list = utilerrors.Flatten(several).Errors()
	}
	for _, e := range list {
		var one *field.Error
		if !errors.As(e, &one) {
			one = field.Invalid(path, "", e.Error())
		}
		errs = append(errs, one)
	}
	return errs
}

func validateBalanced(path *field.Path, resources []configv1.ResourceSpec) (errs field.ErrorList) {
	seen := sets.New[string]()
	for i, r := range resources {
		if seen.Has(r.Name) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), r.Name))
		}
		seen.Insert(r.Name)
		if r.Weight != 1 {
			errs = append(errs, field.Invalid(path.Index(i).Child("weight"), r.Weight, "must be 1"))
		}
	}
	return errs
}

func validateFit(path *field.Path, a *configv1.NodeResourcesFitArgs) (errs field.ErrorList) {
	for i, name := range a.IgnoredResources {
		errs = append(errs, metav1validation.ValidateLabelName(name, path.Child("ignoredResources").Index(i))...)
	}
	for i, group := range a.IgnoredResourceGroups {
		path := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			errs = append(errs, field.Invalid(path, group, "resource group name can't contain '/'"))
		}
		errs = append(errs, metav1validation.ValidateLabelName(group, path)...)
	}
	s, path := a.ScoringStrategy, path.Child("scoringStrategy")
	types := []configv1.ScoringStrategyType{configv1.LeastAllocated, configv1.MostAllocated,
		configv1.RequestedToCapacityRatio}
	if !sets.New(types...).Has(s.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type, types))
	}
	for i, r := range s.Resources {
		if r.Weight <= 0 || r.Weight > 100 {
			errs = append(errs,
				field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight,
					fmt.Sprintf("resource weight of %s not in valid range (0, 100]", r.Name)))
		}
	}
	ratio, path := s.RequestedToCapacityRatio, path.Child("requestedToCapacityRatio")
	switch {
	case s.Type != configv1.RequestedToCapacityRatio && ratio != nil:
		errs = append(errs, field.Forbidden(path, "must be nil when type is not RequestedToCapacityRatio"))
	case s.Type == configv1.RequestedToCapacityRatio && ratio == nil:
		errs = append(errs, field.Required(path, "must be specified when type is RequestedToCapacityRatio"))
	case ratio != nil:
		errs = append(errs, validateShape(path.Child("shape"), ratio.Shape)...)
	}
	return errs
}

func validateShape(path *field.Path, shape []configv1.UtilizationShapePoint) (errs field.ErrorList) {
	if len(shape) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	for i := 1; i < len(shape); i++ {
		if shape[i-1].Utilization >= shape[i].Utilization {
			errs = append(errs,
				field.Invalid(path.Index(i).Child("utilization"), shape[i].Utilization,
					"values must be sorted in increasing order"))
			break
		}
	}
	for i, p := range shape {
		if p.Utilization < 0 || p.Utilization > 100 {
			errs = append(errs,
				field.Invalid(path.Index(i).Child("utilization"), p.Utilization, "not in valid range [0, 100]"))
		}
		if p.Score < 0 || p.Score > 10 {
			errs = append(errs, field.Invalid(path.Index(i).Child("score"), p.Score, "not in valid range [0, 10]"))
		}
	}
	return errs
}

func validateSpread(path *field.Path, a *configv1.PodTopologySpreadArgs) (errs field.ErrorList) {
	kinds := []configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting}
	if !sets.New(kinds...).Has(a.DefaultingType) {
		errs = append(errs, field.NotSupported(path.Child("defaultingType"), a.DefaultingType, kinds))
	} else if a.DefaultingType == configv1.SystemDefaulting && len(a.DefaultConstraints) > 0 {
		errs = append(errs,
			field.Invalid(path.Child("defaultingType"), a.DefaultingType, "when .defaultConstraints are not empty"))
	}
	path = path.Child("defaultConstraints")
	seen := sets.New[string]()
	for i := range a.DefaultConstraints {
		c, path := &a.DefaultConstraints[i], path.Index(i)
		errs = append(errs, validateConstraint(path, c)...)
		id := fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)
		if seen.Has(id) {
			errs = append(errs, field.Duplicate(path, id))
		}
		seen.Insert(id)
	}
	return errs
}

func validateConstraint(path *field.Path, c *v1.TopologySpreadConstraint) (errs field.ErrorList) {
	if c.MaxSkew <= 0 {
		errs = append(errs, field.Invalid(path.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
	}
	if c.TopologyKey == "" {
		errs = append(errs, field.Required(path.Child("topologyKey"), "can not be empty"))
	} else {
		errs = append(errs, metav1validation.ValidateLabelName(c.TopologyKey, path.Child("topologyKey"))...)
	}
	actions := []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}
	if c.WhenUnsatisfiable == "" {
		errs = append(errs, field.Required(path.Child("whenUnsatisfiable"), "can not be empty"))
	} else if !sets.New(actions...).Has(c.WhenUnsatisfiable) {
		errs = append(errs, field.NotSupported(path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, actions))
	}
	if c.LabelSelector != nil {
		errs = append(errs,
			field.Forbidden(path.Child("labelSelector"),
				"constraint must not define a selector, as they deduced for each pod"))
	}
	return errs
}

func validateDynamicResources(path *field.Path, a *configv1.DynamicResourcesArgs) (errs field.ErrorList) {
	if a.FilterTimeout.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("filterTimeout"), a.FilterTimeout, "must be zero or positive"))
	}
	if a.BindingTimeout != nil && a.BindingTimeout.Duration < time.Second {
		errs = append(errs, field.Invalid(path.Child("bindingTimeout"), a.BindingTimeout, "must be at least 1 second"))
	}
	return errs
}
