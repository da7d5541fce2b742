// Package config reads a node's KubeletConfiguration, from a file and from drop-ins.
//
// The type is Kubernetes' own, kubelet.config.k8s.io/v1beta1, so that files of other clusters can
// be used. Load returns the names of set fields that Barque decides itself (addresses,
// certificates, DNS, the runtime) or does not have. It refuses such a field when security depends
// on it.
//
// It opens no connection and knows no defaults of others: Default holds without a file.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/internal/tlsoptions"
	"github.com/barque/barque/kubelet/admission"
	"github.com/barque/barque/kubelet/eviction"
	"github.com/barque/barque/kubelet/shutdown"
)

// Configuration is Kubernetes' own type.
type Configuration = v1beta1.KubeletConfiguration

// The file's kind and version.
const (
	Kind       = "KubeletConfiguration"
	APIVersion = "kubelet.config.k8s.io/v1beta1"
)

// fieldsOfTLS has the fields whose values the flags of the same meaning check.
var fieldsOfTLS = strings.NewReplacer("--tls-min-version", "tlsMinVersion", "--tls-cipher-suites", "tlsCipherSuites")

// honoured are the fields with an effect here.
var honoured = []string{
	"address", "allowedUnsafeSysctls", "apiVersion", "containerLogMaxFiles", "containerLogMaxSize",
	"enableSystemLogHandler",
	"enableSystemLogQuery", "evictionHard", "evictionMaxPodGracePeriod",
	"eventBurst", "eventRecordQPS",
	"evictionMinimumReclaim", "evictionPressureTransitionPeriod", "evictionSoft", "evictionSoftGracePeriod",
	"failCgroupV1", "failSwapOn", "fileCheckFrequency",
	"imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMinimumGCAge", "kind", "kubeReserved",
	"maxParallelImagePulls",
	"maxPods", "mergeDefaultEvictionSettings", "podLogsDir", "podPidsLimit", "podsPerCore", "port",
	"protectKernelDefaults", "providerID", "registerWithTaints", "registryBurst", "registryPullQPS",
	"seccompDefault", "serializeImagePulls", "shutdownGracePeriod", "shutdownGracePeriodByPodPriority",
	"shutdownGracePeriodCriticalPods",
	"staticPodPath", "streamingConnectionIdleTimeout", "systemReserved", "tlsCipherSuites", "tlsMinVersion",
}

// Default is the configuration of a node without a file.
func Default() *Configuration {
	c := &Configuration{
		TypeMeta:                         metav1.TypeMeta{Kind: Kind, APIVersion: APIVersion},
		ContainerLogMaxSize:              "10Mi",
		ContainerLogMaxFiles:             ptr.To[int32](5),
		EnableSystemLogHandler:           ptr.To(true),
		EventRecordQPS:                   ptr.To[int32](50),
		EventBurst:                       100,
		EvictionHard:                     eviction.DefaultHard(),
		EvictionPressureTransitionPeriod: metav1.Duration{Duration: 5 * time.Minute},
		FileCheckFrequency:               metav1.Duration{Duration: 20 * time.Second},
		ImageGCHighThresholdPercent:      ptr.To[int32](85),
		ImageGCLowThresholdPercent:       ptr.To[int32](80),
		ImageMinimumGCAge:                metav1.Duration{Duration: 2 * time.Minute},
		MaxParallelImagePulls:            ptr.To[int32](5),
		MaxPods:                          110,
		PodLogsDir:                       "/var/log/pods",
		PodPidsLimit:                     ptr.To[int64](-1),
		RegistryPullQPS:                  ptr.To[int32](5),
		RegistryBurst:                    10,
		SerializeImagePulls:              ptr.To(false),
	}
	secure(c)
	return c
}

// Replace is a map for Load's over that replaces the whole map of a file.
type Replace map[string]any

// Load reads a file and then the drop-ins of a directory, *.conf in the order of their names. A
// later file replaces the fields that it sets, and over replaces those of all files; under are
// defaults. Each may be empty. ignored are the fields without effect. A field about security is
// never one of them: a value that does not hold here is an error.
func Load(file, dir string, under, over map[string]any) (c *Configuration, ignored []string, err error) {
	paths := []string{}
	if file != "" {
		paths = append(paths, file)
	}
	if dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, nil, fmt.Errorf("drop-ins of the kubelet's configuration: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() && strings.HasSuffix(e.Name(), ".conf") {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	fields := maps.Clone(under)
	if fields == nil {
		fields = map[string]any{}
	}
	for _, path := range paths {
		document, err := read(path)
		if err != nil {
			return nil, nil, err
		}
		merge(fields, document)
	}
	merge(fields, over)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch {
		case slices.Contains(honoured, name) || fixed[name] != nil:
		case harmless[name] != "":
			ignored = append(ignored, name)
		default:
			return nil, nil, fmt.Errorf("the kubelet's configuration: %s: remove it: nothing here implements it", name)
		}
	}
	merged, err := json.Marshal(fields)
	if err != nil {
		return nil, nil, err
	}
	c = &Configuration{}
	if err := json.Unmarshal(merged, c); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(refused(fields, c)...); err != nil {
		return nil, nil, fmt.Errorf("the kubelet's configuration: %w", err)
	}
	complete(c)
	return c, ignored, Validate(c)
}

// merge applies a document to another one as a JSON merge patch (RFC 7386).
func merge(into, document map[string]any) {
	for name, value := range document {
		if value == nil {
			delete(into, name)
			continue
		}
		inner, isMap := value.(map[string]any)
		if have, ok := into[name].(map[string]any); ok && isMap {
			merge(have, inner)
			continue
		}
		into[name] = value
	}
}

// read returns a document after checking that all its fields are known.
func read(path string) (map[string]any, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the kubelet's configuration: %w", err)
	}
	if err != nil {
		return nil, err
	}
	var c Configuration
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.Kind != Kind || c.APIVersion != APIVersion {
		return nil,
			fmt.Errorf("%s: kind %q of %q: want kind: %s and apiVersion: %s", path, c.Kind, c.APIVersion, Kind,
				APIVersion)
	}
	document := map[string]any{}
	return document, yaml.Unmarshal(raw, &document)
}

// complete sets missing fields to their defaults. As with every kubelet, evictionHard replaces all
// of its defaults unless mergeDefaultEvictionSettings is set.
func complete(c *Configuration) {
	d := Default()
	c.Kind, c.APIVersion = Kind, APIVersion
	if len(c.EvictionHard) == 0 {
		c.EvictionHard = d.EvictionHard
	} else if ptr.Deref(c.MergeDefaultEvictionSettings, false) {
		maps.Copy(d.EvictionHard, c.EvictionHard)
		c.EvictionHard = d.EvictionHard
	}
	orDuration := func(v *metav1.Duration, other metav1.Duration) {
		if v.Duration == 0 {
			*v = other
		}
	}
	orDuration(&c.EvictionPressureTransitionPeriod, d.EvictionPressureTransitionPeriod)
	orDuration(&c.FileCheckFrequency, d.FileCheckFrequency)
	orDuration(&c.ImageMinimumGCAge, d.ImageMinimumGCAge)
	if c.ContainerLogMaxSize == "" {
		c.ContainerLogMaxSize = d.ContainerLogMaxSize
	}
	if c.PodLogsDir == "" {
		c.PodLogsDir = d.PodLogsDir
	}
	if c.MaxPods == 0 {
		c.MaxPods = d.MaxPods
	}
	if c.RegistryBurst == 0 {
		c.RegistryBurst = d.RegistryBurst
	}
	if c.EventBurst == 0 {
		c.EventBurst = d.EventBurst
	}
	orDefault(&c.EventRecordQPS, d.EventRecordQPS)
	orDefault(&c.ContainerLogMaxFiles, d.ContainerLogMaxFiles)
	orDefault(&c.ImageGCHighThresholdPercent, d.ImageGCHighThresholdPercent)
	orDefault(&c.ImageGCLowThresholdPercent, d.ImageGCLowThresholdPercent)
	orDefault(&c.MaxParallelImagePulls, d.MaxParallelImagePulls)
	orDefault(&c.PodPidsLimit, d.PodPidsLimit)
	orDefault(&c.RegistryPullQPS, d.RegistryPullQPS)
	orDefault(&c.SerializeImagePulls, d.SerializeImagePulls)
	if *c.SerializeImagePulls {
		c.MaxParallelImagePulls = ptr.To[int32](1)
	}
	secure(c)
}

func orDefault[T any](v **T, other *T) {
	if *v == nil {
		*v = other
	}
}

// Validate checks a complete configuration.
func Validate(c *Configuration) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	_, err := Thresholds(c)
	errs = append(errs, err, admission.ValidateUnsafeSysctls(c.AllowedUnsafeSysctls))
	errs = append(errs, shutdown.Validate(c)...)
	errs = append(errs, validateSecurity(c)...)
	if _, err := LogMaxSize(c); err != nil {
		errs = append(errs, err)
	}
	if _, err := Reserved(c); err != nil {
		errs = append(errs, err)
	}
	check(*c.ContainerLogMaxFiles > 1, "containerLogMaxFiles: %d: want 2 or more", *c.ContainerLogMaxFiles)
	high, low := *c.ImageGCHighThresholdPercent, *c.ImageGCLowThresholdPercent
	check(high >= 0 && high <= 100, "imageGCHighThresholdPercent: %d: want 0 to 100", high)
	check(low >= 0 && low <= 100, "imageGCLowThresholdPercent: %d: want 0 to 100", low)
	check(low < high, "imageGCLowThresholdPercent: %d: want less than imageGCHighThresholdPercent, %d", low, high)
	check(c.MaxPods > 0, "maxPods: %d: want 1 or more", c.MaxPods)
	check(c.PodsPerCore >= 0, "podsPerCore: %d: want 0 (no limit) or more", c.PodsPerCore)
	check(c.Port >= 0 && c.Port <= 65535, "port: %d: want 1 to 65535", c.Port)
	check(*c.MaxParallelImagePulls > 0, "maxParallelImagePulls: %d: want 1 or more", *c.MaxParallelImagePulls)
	check(*c.RegistryPullQPS >= 0, "registryPullQPS: %d: want 0 (no limit) or more", *c.RegistryPullQPS)
	check(c.RegistryBurst > 0, "registryBurst: %d: want 1 or more", c.RegistryBurst)
	check(*c.EventRecordQPS >= 0, "eventRecordQPS: %d: want 0 (no limit) or more", *c.EventRecordQPS)
	check(c.EventBurst > 0, "eventBurst: %d: want 1 or more", c.EventBurst)
	if err := (tlsoptions.Options{MinVersion: c.TLSMinVersion, CipherSuites: c.TLSCipherSuites}).Check(); err != nil {
		errs = append(errs, errors.New(fieldsOfTLS.Replace(err.Error())))
	}
	check(c.EvictionMaxPodGracePeriod >= 0, "evictionMaxPodGracePeriod: %d: want 0 or more",
		c.EvictionMaxPodGracePeriod)
	check(filepath.IsAbs(c.PodLogsDir) && filepath.Clean(c.PodLogsDir) == c.PodLogsDir,
		"podLogsDir: %q: want an absolute path without . and ..", c.PodLogsDir)
	check(c.StaticPodPath == "" || filepath.IsAbs(c.StaticPodPath), "staticPodPath: %q: want an absolute path",
		c.StaticPodPath)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the kubelet's configuration: %w", err)
	}
	return nil
}

// Thresholds returns the eviction thresholds.
func Thresholds(c *Configuration) ([]eviction.Threshold, error) {
	return eviction.Parse(c.EvictionHard, c.EvictionSoft, c.EvictionSoftGracePeriod, c.EvictionMinimumReclaim)
}

// LogMaxSize is how long one log file of a container may become, in bytes.
func LogMaxSize(c *Configuration) (int64, error) {
	q, err := resource.ParseQuantity(c.ContainerLogMaxSize)
	if err != nil || q.Sign() <= 0 {
		return 0, fmt.Errorf("containerLogMaxSize: %q: want an amount such as 10Mi", c.ContainerLogMaxSize)
	}
	return q.Value(), nil
}

// Reserved returns the resources that pods cannot have: those for the system and for Kubernetes
// together, and those that the hard thresholds keep free.
func Reserved(c *Configuration) (v1.ResourceList, error) {
	sum := v1.ResourceList{}
	for _, each := range []struct {
		field string
		list  map[string]string
	}{{"systemReserved", c.SystemReserved}, {"kubeReserved", c.KubeReserved}} {
		for _, name := range slices.Sorted(maps.Keys(each.list)) {
			switch v1.ResourceName(name) {
			case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid":
			default:
				return nil, fmt.Errorf("%s: %q: want cpu, memory, ephemeral-storage or pid", each.field, name)
			}
			q, err := resource.ParseQuantity(each.list[name])
			if err != nil || q.Sign() < 0 {
				return nil, fmt.Errorf("%s: %s: %q: want an amount", each.field, name, each.list[name])
			}
			have := sum[v1.ResourceName(name)]
			have.Add(q)
			sum[v1.ResourceName(name)] = have
		}
	}
	return sum, nil
}
