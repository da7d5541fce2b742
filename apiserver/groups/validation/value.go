package validation

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// Check reports every message of a string check such as those of util/validation under one path.
func Check(value string, at *field.Path, check func(string) []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range check(value) {
		errs = append(errs, field.Invalid(at, value, msg))
	}
	return errs
}

// Name checks a required string with a string check.
func Name(value string, at *field.Path, check func(string) []string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return Check(value, at, check)
}

// DNSLabel checks a required DNS label.
func DNSLabel(value string, at *field.Path) field.ErrorList {
	return Name(value, at, utilvalidation.IsDNS1123Label)
}

// DNSSubdomain checks a required DNS subdomain.
func DNSSubdomain(value string, at *field.Path) field.ErrorList {
	return Name(value, at, utilvalidation.IsDNS1123Subdomain)
}

// QualifiedName checks a required name with an optional DNS prefix, as label keys have.
func QualifiedName(value string, at *field.Path) field.ErrorList {
	return Name(value, at, utilvalidation.IsQualifiedName)
}

// DriverName checks the name of a CSI driver.
func DriverName(name string, at *field.Path) field.ErrorList {
	const longest = 63
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	if len(name) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	for _, msg := range utilvalidation.IsDNS1123Subdomain(strings.ToLower(name)) {
		errs = append(errs, field.Invalid(at, name, msg))
	}
	return errs
}

// PathSegment checks a required string that is one element of a URL path, such as the name of an
// object whose kind is not known.
func PathSegment(value string, at *field.Path) field.ErrorList {
	return Name(value, at, content.IsPathSegmentName)
}

// Enum reports a value that is not one of those allowed; an empty one is reported as missing.
func Enum[T ~string](value T, at *field.Path, allowed ...T) field.ErrorList {
	return EnumOr(value, "", at, allowed...)
}

// EnumOr is Enum with words for a value that is missing.
func EnumOr[T ~string](value T, missing string, at *field.Path, allowed ...T) field.ErrorList {
	if value == "" && !slices.Contains(allowed, value) {
		return field.ErrorList{field.Required(at, missing)}
	}
	return OneOf(value, at, allowed...)
}

// OneOf reports a value that is not one of those allowed, an empty one like any other.
func OneOf[T ~string](value T, at *field.Path, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, value, allowed)}
}

// OptionalOneOf is OneOf for a pointer that may be nil.
func OptionalOneOf[T ~string](value *T, at *field.Path, allowed ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return OneOf(*value, at, allowed...)
}

// OptionalEnum is Enum for a pointer that may be nil.
func OptionalEnum[T ~string](value *T, at *field.Path, allowed ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return Enum(*value, at, allowed...)
}

// NonNegative reports a number below zero.
func NonNegative[T ~int32 | ~int64](value T, at *field.Path) field.ErrorList {
	if value < 0 {
		return field.ErrorList{field.Invalid(at, value, "must be greater than or equal to 0")}
	}
	return nil
}

// OptionalNonNegative is NonNegative for a pointer that may be nil.
func OptionalNonNegative[T ~int32 | ~int64](value *T, at *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	return NonNegative(*value, at)
}

// Positive reports a number below one.
func Positive[T ~int32 | ~int64](value T, at *field.Path) field.ErrorList {
	if value <= 0 {
		return field.ErrorList{field.Invalid(at, value, "must be greater than 0")}
	}
	return nil
}

// Port checks a port number.
func Port(port int32, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range utilvalidation.IsValidPortNum(int(port)) {
		errs = append(errs, field.Invalid(at, port, msg))
	}
	return errs
}

// PortOrName checks a port number or the name of a container port.
func PortOrName(port intstr.IntOrString, at *field.Path) field.ErrorList {
	if port.Type == intstr.Int {
		return Port(port.IntVal, at)
	}
	return Check(port.StrVal, at, utilvalidation.IsValidPortName)
}

// IntOrPercent checks a number of at least 0, or a percentage.
func IntOrPercent(value intstr.IntOrString, at *field.Path) field.ErrorList {
	if value.Type == intstr.Int {
		return NonNegative(value.IntVal, at)
	}
	return Check(value.StrVal, at, utilvalidation.IsValidPercent)
}

// AtMost100Percent reports a percentage above 100.
func AtMost100Percent(value intstr.IntOrString, at *field.Path) field.ErrorList {
	if percent, ok := Percent(value); ok && percent > 100 {
		return field.ErrorList{field.Invalid(at, value, "must not be greater than 100%")}
	}
	return nil
}

// Percent returns the number of a valid percentage.
func Percent(value intstr.IntOrString) (int, bool) {
	if value.Type != intstr.String || len(utilvalidation.IsValidPercent(value.StrVal)) > 0 {
		return 0, false
	}
	percent := 0
	if _, err := fmt.Sscanf(value.StrVal, "%d%%", &percent); err != nil {
		return 0, false
	}
	return percent, true
}

// IP checks an address.
func IP(value string, at *field.Path) field.ErrorList {
	return utilvalidation.IsValidIPForLegacyField(at, value, true, nil)
}

// NonSpecialIP refuses addresses that have a meaning on the sending node: with such an endpoint,
// its author could reach servers on the loopback of every node.
func NonSpecialIP(value string, at *field.Path) field.ErrorList {
	var why string
	ip := netutils.ParseIPSloppy(value)
	switch {
	case ip == nil:
		why = "must be a valid IP address"
	case ip.IsUnspecified():
		why = fmt.Sprintf("may not be unspecified (%s)", value)
	case ip.IsLoopback():
		why = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case ip.IsLinkLocalUnicast():
		why = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case ip.IsLinkLocalMulticast():
		why = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(at, value, why)}
}

// CIDR checks an address range.
func CIDR(value string, at *field.Path) field.ErrorList {
	return utilvalidation.IsValidCIDRForLegacyField(at, value, true, nil)
}

// FileMode checks optional permission bits.
func FileMode(mode *int32, at *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(at, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

// NoBacksteps reports a path with a ".." element.
func NoBacksteps(value string, at *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(value, "/"), "..") {
		return field.ErrorList{field.Invalid(at, value, "must not contain '..'")}
	}
	return nil
}

// DescendingPath checks a path that stays below the directory it is relative to.
func DescendingPath(value string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(value) {
		errs = append(errs, field.Invalid(at, value, "must be a relative path"))
	}
	return append(errs, NoBacksteps(value, at)...)
}

// NonReservedPath checks a descending path of a file in a volume whose updates are atomic: names
// that begin with ".." are the mechanism's own.
func NonReservedPath(value string, at *field.Path) field.ErrorList {
	errs := DescendingPath(value, at)
	if strings.HasPrefix(value, "..") && !strings.HasPrefix(value, "../") {
		errs = append(errs, field.Invalid(at, value, "must not start with '..'"))
	}
	return errs
}
