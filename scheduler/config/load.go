package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/barque/barque/scheduler"
	"github.com/barque/barque/scheduler/cache"
	"github.com/barque/barque/scheduler/extender"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins"
)

// Policy is a scheduling policy that is complete and valid. The zero value changes nothing.
type Policy struct {
	// Notes name the settings without an effect, a sentence each.
	Notes []string

	source   *configv1.KubeSchedulerConfiguration
	profiles []framework.Spec
}

// Load reads a file. The error lists all faults by field; it is for users.
func Load(file string) (*Policy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err // it names the file
	}
	p, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// Parse reads a policy from the text of a file, YAML or JSON.
func Parse(text []byte) (*Policy, error) {
	source, err := decode(text)
	if err != nil {
		return nil, err
	}
	registry := plugins.Registry()
	notes := append(ignored(source), extender.Notes(source.Extenders)...)
	setDefaults(source)
	profiles, more, errs := specs(source, registry)
	errs = append(validate(source), errs...)
	if len(errs) > 0 {
		return nil, problems(errs)
	}
	p := &Policy{Notes: append(notes, more...), source: source, profiles: profiles}
	if err := p.try(registry); err != nil {
		return nil, err
	}
	return p, nil
}

// Apply changes the settings of the file, and sets kube-scheduler's defaults for the others.
// Settings of this machine, such as the number of goroutines, stay unless the file has them.
func (p *Policy) Apply(c *scheduler.Config) {
	if p == nil || p.source == nil {
		return
	}
	c.Profiles = p.profiles
	c.PercentageOfNodesToScore = int(*p.source.PercentageOfNodesToScore)
	if p.source.Parallelism != nil {
		c.Parallelism = int(*p.source.Parallelism)
	}
	c.Extenders = p.source.Extenders
	c.InitialBackoff = time.Duration(*p.source.PodInitialBackoffSeconds) * time.Second
	c.MaxBackoff = time.Duration(*p.source.PodMaxBackoffSeconds) * time.Second
}

func decode(text []byte) (*configv1.KubeSchedulerConfiguration, error) {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(configv1.SchemeGroupVersion)
	obj, kind, err := decoder.Decode(text, nil, nil)
	switch {
	case runtime.IsMissingKind(err) || runtime.IsMissingVersion(err):
		return nil,
			fmt.Errorf("%w: want apiVersion: %s and kind: KubeSchedulerConfiguration", err, configv1.SchemeGroupVersion)
	case runtime.IsNotRegisteredError(err):
		return nil, fmt.Errorf("%w: want a KubeSchedulerConfiguration of %s", err, configv1.SchemeGroupVersion)
	case err != nil:
		return nil, err
	}
	source, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil,
			fmt.Errorf("it holds a %s: want a KubeSchedulerConfiguration of %s", kind.Kind, configv1.SchemeGroupVersion)
	}
	return source, nil
}

// problems lists errors, a line each when there are several.
func problems(list field.ErrorList) error {
	all := list.ToAggregate().Errors() // without repetitions
	if len(all) == 1 {
		return all[0]
	}
	lines := make([]string, len(all))
	for i, err := range all {
		lines[i] = "\n  " + err.Error()
	}
	return errors.New("it has several faults:" + strings.Join(lines, ""))
}

// try builds everything once and drops it, with a client that makes no calls. Faults that only a
// plugin can find in its arguments or extension points are so found before the server starts.
func (p *Policy) try(registry framework.Registry) error {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://nobody.invalid"})
	if err != nil {
		return err
	}
	world := framework.World{
		Client:    client,
		Informers: informers.NewSharedInformerFactory(client, 0),
		NodeInfos: cache.NewSnapshot(),
		Nominator: framework.NewNominator(),
	}
	if _, err := extender.New(p.source.Extenders, nil); err != nil {
		return err
	}
	for i, spec := range p.profiles {
		if _, err := framework.NewProfile(context.Background(), spec, registry, world); err != nil {
			return fmt.Errorf("%s: %w", field.NewPath("profiles").Index(i), err)
		}
	}
	return nil
}
