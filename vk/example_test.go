package vk_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"vkattn/vk"
)

// A stream copies to a buffer, fills a part of it and reads it back.
func Example() {
	dev, err := vk.Open(vk.Options{})
	if err != nil {
		log.Print(err) // matches vk.ErrNoDevice on a machine without Vulkan
		return
	}
	defer dev.Close()
	stream, err := dev.NewStream("example")
	if err != nil {
		log.Print(err)
		return
	}
	defer stream.Close()
	buffer, err := dev.NewBuffer(16, vk.BufferOptions{})
	if err != nil {
		log.Print(err)
		return
	}
	defer buffer.Close()
	out := make([]byte, 16)
	for _, err := range []error{
		stream.Upload(buffer, 0, []byte("0123456789abcdef")),
		stream.Fill(vk.BufferRange{Buffer: buffer, Offset: 4, Size: 4}, 0x2d2d2d2d),
		stream.Download(context.Background(), out, buffer, 0), // submits and waits
	} {
		if err != nil {
			log.Print(err)
			return
		}
	}
	log.Printf("%s", out) // 0123----89abcdef
}

// Errors match a sentinel, whatever Vulkan called them.
func ExampleError() {
	err := fmt.Errorf("step 3: %w", &vk.Error{Op: "vkAllocateMemory", Result: vk.ResultOutOfDeviceMemory})
	fmt.Println(errors.Is(err, vk.ErrOutOfMemory), errors.Is(err, vk.ErrDeviceLost))
	var failed *vk.Error
	fmt.Println(errors.As(err, &failed), failed.Op, vk.ResultName(failed.Result))
	// Output:
	// true false
	// true vkAllocateMemory VK_ERROR_OUT_OF_DEVICE_MEMORY
}

// Objects that nobody made, and closed ones, return errors.
func ExampleStream() {
	var stream vk.Stream
	_, err := stream.Submit()
	fmt.Println(errors.Is(err, vk.ErrInvalid))
	// Output: true
}

func ExampleVersion() {
	fmt.Println(vk.Version(1<<22 | 4<<12 | 312))
	// Output: 1.4.312
}
