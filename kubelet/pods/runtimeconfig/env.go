package runtimeconfig

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/envfile"
	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/volumes"
)

// ConfigError is a failure to make a container's configuration from the objects that the pod refers
// to. It is shown as CreateContainerConfigError.
type ConfigError struct{ err error }

// Error implements error.
func (e *ConfigError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.err }

// environment returns a container's variables: those of services first, then envFrom, then env.
// Later ones override earlier ones.
func (b *Builder) environment(
	ctx context.Context, pod *v1.Pod, c *v1.Container, paths map[string]string,
) ([]*runtimeapi.KeyValue, error) {
	values := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = value
	}
	services := b.serviceVariables(pod)
	for _, from := range c.EnvFrom {
		data, err := b.envFrom(ctx, pod, &from)
		if err != nil {
			return nil, &ConfigError{err}
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			set(from.Prefix+key, data[key])
		}
	}
	for i := range c.Env {
		e := &c.Env[i]
		value := e.Value
		if e.ValueFrom != nil {
			v, ok, err := b.valueFrom(ctx, pod, c, e.ValueFrom, paths)
			if err != nil {
				return nil, &ConfigError{err}
			}
			if !ok {
				continue
			}
			value = v
		} else {
			value = expand(value, func(name string) (string, bool) {
				if v, ok := values[name]; ok {
					return v, true
				}
				v, ok := services[name]
				return v, ok
			})
		}
		set(e.Name, value)
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if _, ok := values[name]; !ok {
			set(name, services[name])
		}
	}
	env := make([]*runtimeapi.KeyValue, 0, len(order))
	for _, name := range order {
		env = append(env, &runtimeapi.KeyValue{Key: name, Value: []byte(values[name])})
	}
	return env, nil
}

func (b *Builder) envFrom(ctx context.Context, pod *v1.Pod, from *v1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		cm, err := b.Objects.ConfigMap(ctx, pod, from.ConfigMapRef.Name)
		if volumes.IsNotFound(err) && isTrue(from.ConfigMapRef.Optional) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return cm.Data, nil
	case from.SecretRef != nil:
		secret, err := b.Objects.Secret(ctx, pod, from.SecretRef.Name)
		if volumes.IsNotFound(err) && isTrue(from.SecretRef.Optional) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		data := make(map[string]string, len(secret.Data))
		for key, value := range secret.Data {
			data[key] = string(value)
		}
		return data, nil
	}
	return nil, nil
}

// valueFrom returns a variable's value, and false when it is optional and not there.
func (b *Builder) valueFrom(
	ctx context.Context, pod *v1.Pod, c *v1.Container, from *v1.EnvVarSource, paths map[string]string,
) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		value, err := podinfo.Field(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		name := from.ResourceFieldRef.ContainerName
		if name == "" {
			name = c.Name
		}
		value, err := podinfo.Resource(pod, from.ResourceFieldRef, name, b.Allocatable())
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		cm, err := b.Objects.ConfigMap(ctx, pod, ref.Name)
		if volumes.IsNotFound(err) && isTrue(ref.Optional) {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		value, ok := cm.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", ref.Key, pod.Namespace, ref.Name)
		}
		return value, ok, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		secret, err := b.Objects.Secret(ctx, pod, ref.Name)
		if volumes.IsNotFound(err) && isTrue(ref.Optional) {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		value, ok := secret.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, pod.Namespace, ref.Name)
		}
		return string(value), ok, nil
	case from.FileKeyRef != nil:
		ref := from.FileKeyRef
		value, ok, err := envfile.Value(paths[ref.VolumeName], ref.Path, ref.Key)
		if err == nil && !ok && !isTrue(ref.Optional) {
			err = fmt.Errorf("couldn't find key %s in the file %s of the volume %s", ref.Key, ref.Path, ref.VolumeName)
		}
		return value, ok, err
	}
	return "", false, fmt.Errorf("the value's source is of a kind that this node does not know")
}

// serviceVariables returns the variables with the addresses of the namespace's services, and in any
// case of the API.
func (b *Builder) serviceVariables(pod *v1.Pod) map[string]string {
	env := map[string]string{}
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	for _, svc := range b.Services(pod.Namespace) {
		isAPI := svc.Namespace == metav1Default && svc.Name == "kubernetes"
		if svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == v1.ClusterIPNone || len(svc.Spec.Ports) == 0 {
			continue
		}
		if isAPI || (links && svc.Namespace == pod.Namespace) {
			addServiceVariables(env, svc)
		}
	}
	return env
}

const metav1Default = "default"

func addServiceVariables(env map[string]string, svc *v1.Service) {
	name := variableName(svc.Name)
	env[name+"_SERVICE_HOST"] = svc.Spec.ClusterIP
	env[name+"_SERVICE_PORT"] = strconv.Itoa(int(svc.Spec.Ports[0].Port))
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		port := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			env[name+"_SERVICE_PORT_"+variableName(p.Name)] = port
		}
		protocol := string(v1.ProtocolTCP)
		if p.Protocol != "" {
			protocol = string(p.Protocol)
		}
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(svc.Spec.ClusterIP, port)
		if i == 0 {
			env[name+"_PORT"] = url
		}
		prefix := name + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		env[prefix] = url
		env[prefix+"_PROTO"] = strings.ToLower(protocol)
		env[prefix+"_PORT"] = port
		env[prefix+"_ADDR"] = svc.Spec.ClusterIP
	}
}

func variableName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

// expand replaces $(NAME) by the variable's value, leaves unknown names as they are and turns $$
// into $.
func expand(s string, lookup func(string) (string, bool)) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				b.WriteString(s[i:])
				return b.String()
			}
			name := s[i+2 : i+2+end]
			if value, ok := lookup(name); ok {
				b.WriteString(value)
			} else {
				b.WriteString(s[i : i+3+end])
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

func isTrue(b *bool) bool { return b != nil && *b }
