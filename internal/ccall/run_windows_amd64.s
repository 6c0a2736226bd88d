// Calls by the convention of Win64. runtime.cgocall calls run on the system stack with the first frame in CX; frames run
// until the next one is nil or has no function.

#include "textflag.h"
#include "go_asm.h"

GLOBL ·run(SB), NOPTR|RODATA, $8
DATA ·run(SB)/8, $run<>(SB)
TEXT run<>(SB), NOSPLIT, $256 // room for the arguments in registers, then arguments 5 to 32
	MOVQ CX, R12

next:
	CMPQ Frame_Fn(R12), $0
	JEQ  done
	MOVQ Frame_Args(R12), AX
	SUBQ $4, AX
	JLE  registers

stack:
	MOVQ (Frame__size+3*8)(R12)(AX*8), R10
	MOVQ R10, 24(SP)(AX*8)
	DECQ AX
	JNZ  stack

registers:
	MOVQ Frame_Args(R12), AX
	TESTQ AX, AX
	JEQ  call
	MOVQ (Frame__size+0*8)(R12), CX
	CMPQ AX, $1
	JEQ  call
	MOVQ (Frame__size+1*8)(R12), DX
	CMPQ AX, $2
	JEQ  call
	MOVQ (Frame__size+2*8)(R12), R8
	CMPQ AX, $3
	JEQ  call
	MOVQ (Frame__size+3*8)(R12), R9

call:
	MOVQ Frame_Fn(R12), R10
	CALL R10
	MOVQ AX, Frame_Result(R12)
	MOVQ Frame_Next(R12), R13
	TESTL AX, AX
	JEQ  follow
	MOVQ Frame_Fail(R12), CX
	TESTQ CX, CX
	CMOVQNE CX, R13

follow:
	MOVQ R13, R12
	TESTQ R12, R12
	JNE  next

done:
	RET
